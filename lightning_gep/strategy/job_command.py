"""The command that starts a further process of this program, also from inside a Hydra job."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

VALUED_FLAGS = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")


def child_command(program: Sequence[str] | None = None) -> tuple[list[str], str | None]:
    """The command, and the directory it is started in (None: this one).

    `program` is what Python is to run; by default what it runs now. Inside a Hydra job the child gets the job's own
    overrides, as a single run, in the job's directory. With the command line of its parent it would start the parent's
    whole sweep, and train at the first job's settings while its parent is at another's: privacy included.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.utils import get_original_cwd

    command = [sys.executable, *(this_program() if program is None else program)]
    if not HydraConfig.initialized():
        return [*command, *sys.argv[1:]], None
    job = HydraConfig.get()
    settings = {
        "hydra.mode": "RUN",
        "hydra.run.dir": quoted(job.runtime.output_dir),
        "hydra.output_subdir": "null",  # the parent has written the job's configuration
        "hydra.job.name": f"{job.job.name}_child",
    }
    overrides = [*job.overrides.task, *(f"{key}={value}" for key, value in settings.items())]
    return [*command, *config_flags(sys.argv[1:]), *overrides], get_original_cwd()


def this_program() -> list[str]:
    """What Python runs now: a module by its name, or a file."""
    import __main__

    spec = __main__.__spec__
    return [str(Path(sys.argv[0]).resolve())] if spec is None else ["-m", spec.name]


def config_flags(arguments: Sequence[str]) -> list[str]:
    """The command line's flags that say where configuration files are."""
    found = []
    for i, argument in enumerate(arguments):
        if argument in VALUED_FLAGS:
            found += [argument, *arguments[i + 1 : i + 2]]
        elif argument.startswith(tuple(f"{flag}=" for flag in VALUED_FLAGS)):
            found.append(argument)
    return found


def quoted(text: str) -> str:
    """The text as one value on Hydra's command line, whatever is in it: a backslash counts only before a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"
