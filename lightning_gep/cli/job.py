"""One training job, from its configuration to its record; started again, it goes on where it stopped."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from lightning_gep.arguments import positive_integer
from lightning_gep.cli.configs import check_keys
from lightning_gep.cli.failures import in_a_line
from lightning_gep.cli.names import job_name
from lightning_gep.cli.progress import JobProgress, last_checkpoint, note_progress
from lightning_gep.errors import ConfigurationError
from lightning_gep.loggers.wandb import finish_runs, log_card, log_summary
from lightning_gep.privacy import ledger
from lightning_gep.reporting.records import NO_PRIVACY, RunRecord, keep_earlier_metrics, locked
from lightning_gep.strategy.callbacks import PrivacyBudget, PrivacyMonitor
from lightning_gep.strategy.strategy import GEPStrategy

FREE_TO_CHANGE = {"output_dir", "threads", "logger", "callbacks", "sweep"}
"""What may differ when a job is continued: where things go and what is shown."""
MAY_DIFFER = {"default_root_dir", "dirpath", "save_dir", "cache_directory", "download", "trust_checkpoint"}
"""The same, of single settings wherever they are."""


def train(config: DictConfig, overrides: Sequence[str] = ()) -> RunRecord:
    """Train and test, and keep the job's record; the seed decides the initial weights and nothing privacy rests on.

    A finished job is not run again: its record is returned. One that was cut off continues from its last checkpoint,
    on new draws and with its ledger; whatever ends it is in the record before it is raised.
    """
    directory = Path(config.output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with clean_environment(), locked(directory) if rank_zero_only.rank == 0 else nullcontext():  # type: ignore[attr-defined]
        record = _begin(directory, config, overrides)
        if record.status == "finished":
            return record
        try:
            _train(config, record, directory)
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | SystemExit)
            record.status, record.error = "interrupted" if stopped else "failed", in_a_line(error, config)
            raise
        else:
            record.status = "finished"
        finally:
            if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
                record.write(directory)
    return record


def make_trainer(config: DictConfig, *callbacks: Any) -> Trainer:
    """The trainer with its strategy, callbacks and loggers; `mechanism=none` is Lightning's own, without privacy."""
    shared = [*_each(config, "callbacks"), *callbacks]
    if config.mechanism.mechanism == NO_PRIVACY:
        strategy: Any = "auto"
        shared = [callback for callback in shared if not isinstance(callback, PrivacyMonitor | PrivacyBudget)]
    else:
        # Finished objects go to the trainer itself: passed through `instantiate` they would be copied.
        strategy = instantiate(config.mechanism, **config.privacy)
    if isinstance(strategy, GEPStrategy):
        # A launcher's worker has another main program, which must not be what further processes are started with.
        strategy.child_command = ["-m", "lightning_gep.cli.train"]
    trainer: Trainer = instantiate(config.trainer)(
        strategy=strategy, callbacks=shared, logger=_each(config, "logger") or False
    )
    return trainer


def _begin(directory: Path, config: DictConfig, overrides: Sequence[str]) -> RunRecord:
    """The record of the job: a new one, or that of the attempts before this one."""
    settings = OmegaConf.to_container(config, resolve=True)
    assert isinstance(settings, dict)
    before = RunRecord.read(directory)
    name = directory.name if config.sweep else job_name(overrides)
    record = RunRecord(name, overrides=list(overrides), config=settings)  # type: ignore[arg-type]
    if before is None:
        return record
    changed = _changed(_lasting(before.config), _lasting(settings))
    if changed:
        before.status, before.error = (
            "failed",
            (
                f"{directory.name} holds a run with other settings ({'; '.join(changed)}). Continue it with its own "
                "settings, or choose another directory (hydra.run.dir=..., for a sweep sweep=<name>)."
            ),
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
    try:
        for logger in trainer.loggers:
            logger.log_hyperparams(record.config)
        checkpoint = last_checkpoint(trainer)
        progress.resumed = checkpoint is not None and checkpoint.exists()
        if not progress.resumed and trainer.is_global_zero:
            _check_nothing_released(directory, checkpoint)
        trainer.fit(model, datamodule, ckpt_path=checkpoint if progress.resumed else None)
        note_progress(record, trainer)
        trainer.test(model, datamodule, verbose=False)
        note_progress(record, trainer)
        log_card(trainer.loggers, getattr(trainer.strategy, "card_directory", None))
        log_summary(
            trainer.loggers,
            mechanism=config.mechanism.mechanism,
            privacy=record.privacy or {},
            test_accuracy=record.metrics.get("test/accuracy"),
            seconds=record.seconds,
        )
    except BaseException:
        finish_runs(trainer.loggers, failed=True)
        raise
    finish_runs(trainer.loggers, failed=False)
    if isinstance(trainer.strategy, GEPStrategy):
        trainer.strategy.wait_for_children()


def _check_nothing_released(directory: Path, checkpoint: Path | None) -> None:
    """Raises ConfigurationError if an earlier attempt released something that this one would not continue."""
    for path in sorted((directory / "privacy").glob("*.ledger")):
        content = ledger.read_or_none(path)
        if content is not None and content.count > 0:
            raise ConfigurationError(
                f"{directory.name} holds a run that made {content.count} steps, but no checkpoint to continue from"
                + (f" ({checkpoint.name} is missing from {checkpoint.parent.name})" if checkpoint is not None else "")
                + ". What it released is spent: restore the checkpoint, or choose another directory."
            )


@contextmanager
def clean_environment() -> Iterator[None]:
    """Afterwards the environment and torch's process group are as before: the next job is not part of this one.

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


def _each(config: DictConfig, group: str) -> list[Any]:
    """Everything a group lists by name; a group may list nothing."""
    return [instantiate(entry) for entry in (OmegaConf.select(config, group) or {}).values()]


def _lasting(settings: dict[Any, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in FREE_TO_CHANGE}


def _changed(before: Any, now: Any, key: str = "") -> list[str]:
    """The keys whose values differ, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = list(dict.fromkeys([*before, *now]))
        return [
            line
            for name in names
            for line in _changed(before.get(name), now.get(name), f"{key}.{name}" if key else str(name))
            if name not in MAY_DIFFER
        ]
    return [] if before == now else [f"{key}: {before} → {now}"]
