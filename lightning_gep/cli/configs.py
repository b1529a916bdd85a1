"""Where the configuration files are, which keys they may have, and how sweeps and their jobs are listed and named."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

import lightning_gep
from lightning_gep.errors import ConfigurationError

GROUPS = ["data", "aux", "model", "optimizer", "scheduler", "mechanism", "privacy", "trainer", "callbacks", "logger"]
KEYS = {*GROUPS, "seed", "threads", "output_dir", "sweep", "draw"}
LONGEST_NAME = 150
"""Characters; file systems allow 255 bytes."""


def config_directory() -> Path:
    """`conf/` as shipped inside an installed package, or beside the package in a clone."""
    package = Path(lightning_gep.__file__).resolve().parent
    packaged = package / "conf"
    return packaged if packaged.is_dir() else package.parent / "conf"


def composed(overrides: Iterable[str], output_dir: str | Path = ".") -> DictConfig:
    """The configuration of a job as gep-train composes it."""
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("train", list(overrides))
    check_keys(config)
    config.output_dir = str(output_dir)  # Hydra knows it inside a job only
    return config


def check_keys(keys: Iterable[object]) -> None:
    """Raises ConfigurationError for a top-level key that nothing reads.

    Hydra refuses a misspelt key on the command line, but accepts any key from a file: an experiment file with `privcy:`
    instead of `privacy:` would train at the default ε.
    """
    unknown = sorted(str(key) for key in keys if key not in KEYS)
    if unknown:
        raise ConfigurationError(
            f"The configuration has an unknown key {unknown[0]!r}. Remove it, or spell it as one of "
            f"{', '.join(sorted(KEYS))}."
        )


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting by its whole key: `{"a": {"b": 1}}` is `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        found |= flat(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
    return found


def combinations(overrides: Iterable[Override]) -> list[list[str]]:
    """Every combination of the values given, as lists of plain overrides; of a key given twice the last one counts."""
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [str(override.input_line)]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise ConfigurationError(f"{override.input_line} has no end. List its values, as in {key}=1,2.")
    return [list(chosen) for chosen in product(*choices.values())]


def job_name(overrides: Sequence[str]) -> str:
    """The overrides of a job as the name of its directory: `mechanism.k=100,seed=0`."""
    parts = sorted(overrides)
    text = ",".join(parts)
    name = re.sub(r"[^\w.,=+-]", "_", text) or "default"
    # A name with replaced characters, or one that is cut, may not be unique.
    unique = (name == text or not parts) and len(name) <= LONGEST_NAME
    return name if unique else f"{name[:LONGEST_NAME]}-{_digest(parts)}"


def sweep_name(given: str | None, overrides: Sequence[str]) -> str:
    """The name given, or one made of the keys that are swept: the same command always has the same name."""
    if given is not None:
        return given
    swept = [override.split("=", 1)[0].lstrip("+~").rsplit(".", 1)[-1] for override in overrides if "," in override]
    name = re.sub(r"[^\w-]", "_", "-".join(sorted(swept)))[:60] or "sweep"
    return f"{name}-{_digest(sorted(overrides))}"


def _digest(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()


OmegaConf.register_new_resolver("sweep_name", sweep_name, replace=True)
