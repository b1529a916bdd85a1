"""A callback that keeps the record of a job up to date, and makes it resumable from its first step on."""

import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from lightning_gep.reporting.records import RunRecord
from lightning_gep.strategy.strategy import GEPStrategy

SECONDS_BETWEEN_WRITES = 1.0


class JobProgress(Callback):
    """Writes steps, metrics and the privacy account into `run.json`, once a second at most.

    A checkpoint is saved before the first step: a job killed before its first regular checkpoint is then resumed with
    its ledger, and the steps that were lost are counted like all others.
    """

    def __init__(self, record: RunRecord, directory: Path) -> None:
        self.record, self.directory = record, directory
        self.resumed = False
        """Whether there is a checkpoint already. Known before processes start: asked later, each may find another
        answer, and one of them would wait forever for the others to save."""
        self._written = time.monotonic()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        path = last_checkpoint(trainer)
        if path is not None and not self.resumed:
            trainer.save_checkpoint(path)
        self._write(trainer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self._written > SECONDS_BETWEEN_WRITES:
            self._write(trainer)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._write(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        now = time.monotonic()
        self.record.seconds += now - self._written
        self._written = now
        if not trainer.is_global_zero:
            return
        note_progress(self.record, trainer)
        self.record.write(self.directory)


def note_progress(record: RunRecord, trainer: Trainer) -> None:
    """Take over how far the trainer is. What is not private stays out: a record is there to be shown."""
    record.step = trainer.global_step
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    record.metrics.update({name: value for name, value in metrics.items() if not name.startswith("nonprivate/")})
    strategy = trainer.strategy
    if isinstance(strategy, GEPStrategy) and strategy.privacy is not None:
        record.privacy = strategy.privacy.report()
        record.planned_steps = strategy.privacy.plan.planned_steps
    elif record.without_privacy:
        share = 1 / trainer.num_training_batches if trainer.num_training_batches else None
        record.privacy = {"private": False, "epsilon": math.inf, "steps": record.step, "sample_rate": share}
        planned = trainer.estimated_stepping_batches
        record.planned_steps = int(planned) if math.isfinite(planned) else None


def last_checkpoint(trainer: Trainer) -> Path | None:
    """Where the job's newest weights are saved, if its callbacks save them under one name."""
    callback = trainer.checkpoint_callback
    if not isinstance(callback, ModelCheckpoint) or callback.dirpath is None or not callback.filename:
        return None
    return Path(callback.dirpath) / f"{callback.filename}{callback.FILE_EXTENSION}"
