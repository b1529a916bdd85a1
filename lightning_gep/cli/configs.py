"""Where the configuration files are, what may be in them, and how an error names the key it is about."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import lightning_gep
from lightning_gep.cli.names import sweep_name
from lightning_gep.errors import ConfigurationError

GROUPS = ["data", "aux", "model", "optimizer", "scheduler", "mechanism", "privacy", "trainer", "callbacks", "logger"]
KEYS = {*GROUPS, "seed", "threads", "output_dir", "sweep", "draw"}

OmegaConf.register_new_resolver("sweep_name", sweep_name, replace=True)


def config_directory() -> Path:
    """`conf/` as shipped inside an installed package, or beside the package in a clone."""
    package = Path(lightning_gep.__file__).resolve().parent
    packaged = package / "conf"
    return packaged if packaged.is_dir() else package.parent / "conf"


def check_keys(keys: Iterable[object]) -> None:
    """Raises ConfigurationError for a key at the top that nothing reads.

    Hydra refuses a misspelt key on the command line, but takes any from a file: an experiment file with `privcy:` for
    `privacy:` would train at the default ε.
    """
    unknown = sorted(str(key) for key in keys if key not in KEYS)
    if unknown:
        raise ConfigurationError(
            f"The configuration has an unknown key {unknown[0]!r}. Remove it, or spell it as one of "
            f"{', '.join(sorted(KEYS))}."
        )


def with_config_key(message: str, config: Any) -> str:
    """An error's message, with the configuration key of the argument it speaks of, if it speaks of one."""
    keys = [key for key, value in _values(config) if _speaks_of(message, key.rsplit(".")[-1], value)]
    return f"{message} (config key: {', '.join(keys)})" if keys else message


def _speaks_of(message: str, name: str, value: object) -> bool:
    """Whether a message says `name=value`, or `name must be …`, as those of this package do."""
    values = "|".join(re.escape(text) for text in {str(value), repr(value)})
    return re.search(rf"(^|\W){re.escape(name)}(=({values})(\W|$)| must )", message) is not None


def _values(config: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """All values in a nested dictionary, with their full names."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{name}.")
        elif not str(name).startswith("_"):
            yield f"{prefix}{name}", value
