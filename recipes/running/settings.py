"""The settings of a run: its overrides, and the configuration they compose to without machine-specific paths."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightning_gep.cli import configs
from lightning_gep.cli.failures import one_line_errors
from recipes.tables.types import Run

MACHINE_ONLY = {"directory", "cache_directory", "download", "output_dir", "default_root_dir", "dirpath", "save_dir"}
"""Keys, at any depth, that say where files are. They do not change a result and are not kept with it."""
CALLBACKS = (
    "+callbacks.accuracy_curve._target_=recipes.running.callbacks.AccuracyCurve",
    "+callbacks.save_when_interrupted._target_=recipes.running.callbacks.SaveWhenInterrupted",
)

Settings = dict[str, Any]


def overrides_of(run: Run, extra: Sequence[str] = ()) -> list[str]:
    """The arguments of gep-train without paths. `extra` are the user's own overrides, which come last."""
    cell = run.cell
    return [f"experiment={cell.experiment}", "threads=1", *cell.overrides, *CALLBACKS, f"seed={run.seed}", *extra]


def composed(run: Run, extra: Sequence[str] = ()) -> DictConfig:
    """The configuration as gep-train composes it. Raises ConfigurationError if it cannot be composed."""
    with one_line_errors(run.name):
        return configs.composed(overrides_of(run, extra))


def settings_of(run: Run, extra: Sequence[str] = ()) -> Settings:
    """The composed configuration as plain data, without paths: two runs with equal settings are the same run."""
    return without_machine(OmegaConf.to_container(composed(run, extra), resolve=True))


def without_machine(settings: Any) -> Any:
    """The settings without paths, and with bare class names: moving a module does not change what a run does."""
    if not isinstance(settings, dict):
        return settings
    kept = {key: without_machine(value) for key, value in settings.items() if key not in MACHINE_ONLY}
    return {key: value.rpartition(".")[2] if key == "_target_" else value for key, value in kept.items()}


def run_directory(parent: Path, run: Run, settings: Settings) -> Path:
    """The working directory of a run. Its name has a hash of the settings: only the same settings continue a run."""
    text = json.dumps(settings, sort_keys=True)
    return parent / f"{run.name}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
