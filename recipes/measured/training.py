"""The training whose gradients are measured: GEP on one of the paper's data sets, with weights kept at a few steps.

It is the experiment of the paper's table at ε = 8 with that noise and schedule, but for two things. The subspace is
tracked: the paper's cold start on 2000 anchors at each step would take days here. And it ends at the last step kept. On
CIFAR-10 it is the run of GEP in the table `first_epochs`, whose directory serves if its weights were kept.
"""

import gc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf, open_dict

from lightning_gep.cli.configs import composed
from lightning_gep.cli.job import train
from lightning_gep.errors import ConfigurationError
from lightning_gep.reporting.records import RunRecord
from recipes.tables.ours import TWO_EPOCHS
from recipes.tables.types import TRACKED

CHANGED = {"cifar10": (*TWO_EPOCHS, *TRACKED)}
"""Overrides of the experiment; by default only the basis."""
STEPS_BETWEEN_CHECKPOINTS = 10


class KeepWeights(Callback):
    """Writes the weights to `directory` before the first step and after each of `steps`, and ends after the last."""

    def __init__(self, directory: str, steps: Iterable[int]) -> None:
        self.directory, self.steps = Path(directory), set(steps)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._keep(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._keep(trainer, pl_module)

    def _keep(self, trainer: Trainer, module: LightningModule) -> None:
        step = trainer.global_step
        if step in self.steps and trainer.is_global_zero:
            path = weights_file(self.directory, step)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            torch.save(module.state_dict(), partial)
            partial.replace(path)
        if step >= max(self.steps):
            trainer.should_stop = True


def weights_file(directory: Path, step: int) -> Path:
    """Where the weights of a step are kept."""
    return directory / f"step{step}.pt"


def experiment(data: str, mechanism: str = "gep", epsilon: int = 8) -> str:
    """The name of a cell of the paper's table."""
    return f"table1/{data}_{mechanism}_eps{epsilon}"


def training(data: str, overrides: Sequence[str] = ()) -> DictConfig:
    """The configuration of the training on a data set, with further settings in the words of gep-train."""
    return composed([f"experiment={experiment(data)}", *CHANGED.get(data, TRACKED), *overrides])


def weights_after(steps: Sequence[int], config: DictConfig, directory: Path) -> tuple[dict[int, Path], RunRecord]:
    """The files with the weights after each of `steps`, and the record of the training, which is run if needed.

    An interrupted training continues from its last checkpoint. Raises ConfigurationError if the directory has a
    training with other settings, or one that ended before the last of the steps.
    """
    weights = directory / "weights"
    with open_dict(config):
        config.output_dir = str(directory)
        config.callbacks.checkpoint.every_n_train_steps = STEPS_BETWEEN_CHECKPOINTS
        config.callbacks.keep_weights = {
            "_target_": "recipes.measured.training.KeepWeights",
            "directory": str(weights),
            "steps": list(steps),
        }
    record = train(config)
    gc.collect()  # a reference cycle holds the strategy with its large basis
    files = {step: weights_file(weights, step) for step in steps}
    missing = [step for step, path in files.items() if not path.exists()]
    if missing:
        raise ConfigurationError(
            f"The training in {directory.name} ended after {record.step} steps, and the weights after "
            f"{', '.join(map(str, missing))} were not kept. Give --steps that were, or another --working-directory."
        )
    return files, record


def deciding_settings(config: DictConfig) -> dict[str, Any]:
    """The settings that decide the weights, without paths."""
    groups = ("model", "optimizer", "scheduler", "mechanism", "privacy")
    return {
        **{group: OmegaConf.to_container(config[group], resolve=True) for group in groups},
        "batch_size": config.data.batch_size,
        "epochs_of_the_schedule": config.trainer.max_epochs,
        "seed": config.seed,
    }
