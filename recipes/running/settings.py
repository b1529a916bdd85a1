"""What a run is asked to do: its overrides, and the settings they come to, without what only a machine knows."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from lightning_gep.cli.configs import check_keys, config_directory
from lightning_gep.cli.failures import one_line_errors
from recipes.running.cells import Run

MACHINE_ONLY = {"directory", "cache_directory", "download", "output_dir", "default_root_dir", "dirpath", "save_dir"}
"""Keys that say where things are, wherever they stand: they neither belong into a result nor change it."""
CALLBACKS = (
    "+callbacks.accuracy_curve._target_=recipes.running.callbacks.AccuracyCurve",
    "+callbacks.save_when_interrupted._target_=recipes.running.callbacks.SaveWhenInterrupted",
)

Settings = dict[str, Any]


def overrides_of(run: Run, extra: Sequence[str] = ()) -> list[str]:
    """The words after gep-train, but for where things are. `extra` are the user's own, which come last."""
    cell = run.cell
    return [f"experiment={cell.experiment}", "threads=1", *cell.overrides, *CALLBACKS, f"seed={run.seed}", *extra]


def settings_of(run: Run, extra: Sequence[str] = ()) -> Settings:
    """The whole configuration as gep-train composes it. Raises ConfigurationError for what cannot be composed."""
    with one_line_errors(run.name), initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("train", [*overrides_of(run, extra), "output_dir=."])
        check_keys(config)
        return without_machine(OmegaConf.to_container(config, resolve=True))


def without_machine(settings: Any) -> Any:
    """The settings without paths, and classes by their bare names: moving a module does not change what a run does."""
    if not isinstance(settings, dict):
        return settings
    kept = {key: without_machine(value) for key, value in settings.items() if key not in MACHINE_ONLY}
    return {key: value.rpartition(".")[2] if key == "_target_" else value for key, value in kept.items()}


def run_directory(parent: Path, run: Run, settings: Settings) -> Path:
    """Where a run works. Other settings have another directory: what was cut is only continued by what it was."""
    text = json.dumps(settings, sort_keys=True)
    return parent / f"{run.name}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
