"""A callback that keeps the record of a job up to date, and makes it resumable at any time."""

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
    """Writes steps, metrics and the privacy account to `run.json`, at most once per second.

    A checkpoint is saved before the first step, so that a job killed before its first regular checkpoint is resumed
    with its ledger and its lost steps are counted; and on Ctrl-C and SIGTERM, so that at most the current step is lost.
    """

    def __init__(self, record: RunRecord, directory: Path) -> None:
        self.record, self.directory = record, directory
        self.resumed = False
        """Whether there is a checkpoint already. Known before processes start: asked later, their answers could differ,
        and one of them would wait forever for the others to save."""
        self._training = False
        self._written = time.monotonic()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.resumed:
            self._save(trainer)
        self._training = True
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
        self._training = False
        self._write(trainer)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # Several processes save together, and not all of them need be interrupted.
        if self._training and isinstance(exception, KeyboardInterrupt) and trainer.world_size == 1:
            self._save(trainer)
        self._write(trainer)

    def _save(self, trainer: Trainer) -> None:
        path = last_checkpoint(trainer)
        if path is not None:
            trainer.save_checkpoint(path)

    def _write(self, trainer: Trainer) -> None:
        now = time.monotonic()
        self.record.seconds += now - self._written
        self._written = now
        if trainer.is_global_zero:
            note_progress(self.record, trainer)
            self.record.write(self.directory)


def note_progress(record: RunRecord, trainer: Trainer) -> None:
    """Copy the state of the trainer into the record, without `nonprivate/…` metrics: records are meant to be shown."""
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
    """Where the newest weights are saved, if the callbacks save them under a single name."""
    callback = trainer.checkpoint_callback
    if not isinstance(callback, ModelCheckpoint) or callback.dirpath is None or not callback.filename:
        return None
    return Path(callback.dirpath) / f"{callback.filename}{callback.FILE_EXTENSION}"
