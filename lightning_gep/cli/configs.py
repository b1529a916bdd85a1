"""Where the configuration files are, and which keys they may have."""

from collections.abc import Iterable
from pathlib import Path

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
