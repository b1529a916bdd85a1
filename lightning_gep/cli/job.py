"""One training job, from its configuration to its record; started again, it continues where it stopped."""

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from typing_extensions import override

from lightning_gep.arguments import positive_integer
from lightning_gep.cli.configs import check_keys, flat, job_name
from lightning_gep.cli.failures import in_a_line
from lightning_gep.errors import ConfigurationError
from lightning_gep.loggers.wandb import finish_runs, log_outcome
from lightning_gep.privacy import ledger
from lightning_gep.reporting.records import NO_PRIVACY, RunRecord, keep_earlier_metrics, locked
from lightning_gep.strategy.callbacks import PrivacyBudget, PrivacyMonitor
from lightning_gep.strategy.strategy import GEPStrategy

GROUPS_THAT_MAY_DIFFER = {"output_dir", "threads", "logger", "callbacks", "sweep"}
KEYS_THAT_MAY_DIFFER = {"default_root_dir", "dirpath", "save_dir", "cache_directory", "download", "trust_checkpoint"}
"""When a job is continued: where files are, and what is displayed."""
SECONDS_BETWEEN_WRITES = 1.0


def train(config: DictConfig, overrides: Sequence[str] = ()) -> RunRecord:
    """Train and test, and keep the job's record. The seed decides the initial weights and nothing privacy rests on.

    A finished job is not run again: its record is returned. An interrupted one continues from its last checkpoint, on
    new draws and with its ledger. An error is in the record before it is raised.
    """
    directory = Path(config.output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    is_first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    with clean_environment(), locked(directory) if is_first else nullcontext():
        record = _begin(directory, config, overrides)
        if record.status == "finished":
            return record
        try:
            _train(config, record, directory)
            record.status = "finished"
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | SystemExit)
            record.status, record.error = "interrupted" if stopped else "failed", in_a_line(error, config)
            raise
        finally:
            if is_first:
                record.write(directory)
    return record


def make_trainer(config: DictConfig, *callbacks: Callback) -> Trainer:
    """The trainer with its strategy, callbacks and loggers; `mechanism=none` is Lightning's own, without privacy."""
    shared = [*_each(config, "callbacks"), *callbacks]
    strategy: Any = "auto"
    if config.mechanism.mechanism == NO_PRIVACY:
        shared = [callback for callback in shared if not isinstance(callback, PrivacyMonitor | PrivacyBudget)]
    else:
        strategy = instantiate(config.mechanism, **config.privacy)
    if isinstance(strategy, GEPStrategy):
        # The main program of a launcher's worker is the launcher's; child processes must run gep-train.
        strategy.child_command = ["-m", "lightning_gep.cli.train"]
    # Objects are passed to the trainer itself: `instantiate` would copy them.
    return instantiate(config.trainer)(strategy=strategy, callbacks=shared, logger=_each(config, "logger") or False)


def changed_settings(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The settings that differ and must not when a job is continued, each with both values.

    Classes are compared by their bare names: moving a module does not change what a job does.
    """
    old, new = _deciding(before), _deciding(now)
    both = dict.fromkeys([*old, *new])
    return [f"{key}: {old.get(key)} → {new.get(key)}" for key in both if old.get(key) != new.get(key)]


def _deciding(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.rpartition(".")[2] if key.endswith("_target_") else value
        for key, value in flat(settings).items()
        if key.split(".")[0] not in GROUPS_THAT_MAY_DIFFER and not KEYS_THAT_MAY_DIFFER & {*key.split(".")}
    }


def last_checkpoint(trainer: Trainer) -> Path | None:
    """Where the newest weights are saved, if the callbacks save them under a single name."""
    callback = trainer.checkpoint_callback
    if not isinstance(callback, ModelCheckpoint) or callback.dirpath is None or not callback.filename:
        return None
    return Path(callback.dirpath) / f"{callback.filename}{callback.FILE_EXTENSION}"


@contextmanager
def clean_environment() -> Iterator[None]:
    """Afterwards the environment and torch's process group are as before, so that the next job starts clean.

    Lightning leaves the address and rank of the processes it starts in the environment. A second job in the same
    process would take itself for one of them, and train at the settings of the first.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


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
        self._tick(trainer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self._written > SECONDS_BETWEEN_WRITES:
            self._tick(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training = False
        self._tick(trainer)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # Several processes save together, and not all of them need be interrupted.
        if self._training and isinstance(exception, KeyboardInterrupt) and trainer.world_size == 1:
            self._save(trainer)
        self._tick(trainer)

    def note(self, trainer: Trainer) -> None:
        """Write the state of the trainer, without `nonprivate/…` metrics: records are meant to be shown."""
        record, strategy = self.record, trainer.strategy
        record.step = trainer.global_step
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        record.metrics.update({name: value for name, value in metrics.items() if not name.startswith("nonprivate/")})
        if isinstance(strategy, GEPStrategy) and strategy.privacy is not None:
            record.privacy = strategy.privacy.report()
            record.planned_steps = strategy.privacy.plan.planned_steps
        elif record.without_privacy:
            share = 1 / trainer.num_training_batches if trainer.num_training_batches else None
            record.privacy = {"private": False, "epsilon": math.inf, "steps": record.step, "sample_rate": share}
            planned = trainer.estimated_stepping_batches
            record.planned_steps = int(planned) if math.isfinite(planned) else None
        if trainer.is_global_zero:
            record.write(self.directory)

    def _tick(self, trainer: Trainer) -> None:
        now = time.monotonic()
        self.record.seconds += now - self._written
        self._written = now
        self.note(trainer)

    def _save(self, trainer: Trainer) -> None:
        path = last_checkpoint(trainer)
        if path is not None:
            trainer.save_checkpoint(path)


def _begin(directory: Path, config: DictConfig, overrides: Sequence[str]) -> RunRecord:
    """The record of the job: a new one, or one that continues an earlier attempt."""
    settings: Any = OmegaConf.to_container(config, resolve=True)
    name = directory.name if config.sweep else job_name(overrides)
    record = RunRecord(name, overrides=list(overrides), config=settings)
    before = RunRecord.read(directory)
    if before is None:
        return record
    changed = changed_settings(before.config, settings)
    if changed:
        before.status, before.error = (
            "failed",
            f"{directory.name} holds a run with other settings ({'; '.join(changed)}). Continue it with its own "
            "settings, or choose another directory (hydra.run.dir=..., for a sweep sweep=<name>).",
        )
        before.write(directory)
        raise ConfigurationError(before.error)
    if before.status == "finished":
        return before
    record.attempts, record.started = before.attempts + 1, before.started
    record.seconds, record.step, record.metrics = before.seconds, before.step, before.metrics
    return record


def _train(config: DictConfig, record: RunRecord, directory: Path) -> None:
    check_keys(config)
    if config.threads is not None:
        torch.set_num_threads(positive_integer("threads", config.threads, "Use 1, or null for torch's own choice."))
    seed_everything(config.seed)
    datamodule, model = instantiate(config.data), instantiate(config.model)
    progress = JobProgress(record, directory)
    trainer = make_trainer(config, progress)
    if trainer.is_global_zero:
        keep_earlier_metrics(directory)
        record.write(directory)
    failed = True
    try:
        for logger in trainer.loggers:
            logger.log_hyperparams(record.config)
        checkpoint = last_checkpoint(trainer)
        progress.resumed = checkpoint is not None and checkpoint.exists()
        if not progress.resumed and trainer.is_global_zero:
            _check_nothing_released(directory, checkpoint)
        trainer.fit(model, datamodule, ckpt_path=checkpoint if progress.resumed else None)
        trainer.test(model, datamodule, verbose=False)
        progress.note(trainer)
        results = {"test/accuracy": record.metrics.get("test/accuracy"), "performance/training_seconds": record.seconds}
        card_directory = getattr(trainer.strategy, "card_directory", None)
        log_outcome(trainer.loggers, record.privacy or {}, card_directory, **results)
        failed = False
    finally:
        finish_runs(trainer.loggers, failed=failed)
    if isinstance(trainer.strategy, GEPStrategy):
        trainer.strategy.wait_for_children()


def _check_nothing_released(directory: Path, checkpoint: Path | None) -> None:
    """Raises ConfigurationError if an earlier attempt released something that this one would not continue."""
    for path in sorted((directory / "privacy").glob("*.ledger")):
        content = ledger.read_or_none(path)
        if content is not None and content.count > 0:
            missing = "" if checkpoint is None else f" ({checkpoint.name} is missing from {checkpoint.parent.name})"
            raise ConfigurationError(
                f"{directory.name} holds a run that made {content.count} steps, but no checkpoint to continue from"
                f"{missing}. The budget of these steps is spent: restore the checkpoint, or choose another directory."
            )


def _each(config: DictConfig, group: str) -> list[Any]:
    """Every object of a group that lists objects by name; the group may be empty."""
    return [instantiate(entry) for entry in (OmegaConf.select(config, group) or {}).values()]
