"""`gep-train`: train a model with differential privacy as the configuration in `conf/` says, once or in a sweep.

Exit codes: 0 all is well, 1 a job failed, 2 a setting cannot work (nothing was trained), 130 interrupted.
"""

import os
import sys
import traceback
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from lightning_gep.cli.configs import config_directory
from lightning_gep.cli.console import output_into
from lightning_gep.cli.failures import in_a_line, is_a_setting
from lightning_gep.cli.summary import summary_table
from lightning_gep.cli.sweep import JobsFailed, register_sweepers

begun = False
"""Whether a job has begun: whatever goes wrong before it is a matter of settings."""


def main() -> None:
    """The console command."""
    register_sweepers()
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except JobsFailed:
        raise
    except SystemExit as end:
        if end.code == 1 and not begun:
            raise SystemExit(2) from None
        raise


@hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="train")
def app(config: DictConfig) -> None:
    """One job, alone or as part of a sweep."""
    global begun
    begun = True
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        job_of_a_sweep(config)
    else:
        single_job(config)


def single_job(config: DictConfig) -> None:
    """Train, test and print a summary; a setting that cannot work is one line on stderr and exit code 2."""
    # Lightning takes seconds to import: a misspelt key and --help should not wait for it.
    from lightning_gep.cli.job import train

    try:
        record = train(config, _overrides())
    except Exception as error:
        if not is_a_setting(error):
            raise
        print(f"gep-train: {in_a_line(error, config)}", file=sys.stderr)
        raise SystemExit(2) from None
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        Console().print(summary_table(record, Path(config.output_dir)))


def job_of_a_sweep(config: DictConfig) -> None:
    """Train and test with all output in the job's own file; what goes wrong is in its record, and the sweep goes on."""
    with output_into(Path(config.output_dir) / "console.log"):
        from lightning_gep.cli.job import train

        try:
            train(config, _overrides())
        except Exception:
            traceback.print_exc()


def _overrides() -> list[str]:
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


if __name__ == "__main__":
    main()
