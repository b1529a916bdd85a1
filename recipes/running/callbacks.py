"""Callbacks that the settings of the tables' runs name."""

import math
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_gep.strategy.strategy import GEPStrategy


class AccuracyCurve(Callback):
    """Logs test/accuracy about `points` times over training, to draw a curve. Nothing is selected by it."""

    def __init__(self, points: int = 20) -> None:
        self.points = points

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_global_zero and trainer.global_step % self._every(trainer) == 0:
            accuracy = accuracy_now(trainer, pl_module)
            for logger in trainer.loggers:
                logger.log_metrics({"test/accuracy": accuracy}, step=trainer.global_step)
                logger.save()

    def _every(self, trainer: Trainer) -> int:
        """Steps between evaluations; once per epoch if the total number of steps is unknown."""
        if isinstance(trainer.strategy, GEPStrategy):
            planned = trainer.strategy.privacy.plan.planned_steps if trainer.strategy.privacy is not None else None
        else:
            planned = trainer.estimated_stepping_batches
        endless = planned is None or math.isinf(planned)
        return int(trainer.num_training_batches) if endless else max(1, int(planned) // self.points)


class SaveWhenInterrupted(Callback):
    """Does nothing: `gep-train` saves interrupted runs by itself. The settings of results name it."""


def accuracy_now(trainer: Trainer, module: LightningModule) -> float:
    """Test accuracy of the current weights."""
    modes = {part: part.training for part in module.modules()}
    right = seen = 0
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # reading a loader consumes a random number
        module.eval()
        for number, (inputs, labels) in enumerate(trainer.datamodule.test_dataloader()):  # type: ignore[attr-defined]
            classes = module.predict_step(inputs.to(module.device), number)
            right += int((classes.cpu() == labels).sum())
            seen += len(labels)
    for part, mode in modes.items():
        part.training = mode
    return right / seen
