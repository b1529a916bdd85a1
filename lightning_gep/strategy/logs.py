"""Keeping what is logged in training from being published: it may be a function of private data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.loggers.logger import DummyLogger

OWN_NAMES = {
    *(f"privacy/{name}" for name in ("epsilon", "delta", "noise_multiplier", "steps", "private", "remaining_epsilon")),
    *(f"performance/{name}" for name in ("steps_per_second", "records_per_second", "peak_memory_mb")),
}
"""What this package logs in training: none of it is a function of the records."""
NOT_PRIVATE = "nonprivate/"
EVALUATION = ("validation", "on_validation", "test", "on_test", "predict", "on_predict", "on_sanity")
"""How the names of hooks begin in which no batch of training records is around."""


class LogRecorder:
    """Stands in for `self.log` and `self.log_dict`, and remembers what would have been logged."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any, dict[str, Any]]] = []

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Remember one value."""
        if args:
            kwargs["prog_bar"] = args[0]
        self.entries.append((name, value, kwargs))

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        """Remember several values."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    @property
    def names(self) -> list[str]:
        """Every name once, in order."""
        return list(dict.fromkeys(name for name, _, _ in self.entries))


@contextmanager
def recorded_logs(module: LightningModule) -> Iterator[LogRecorder]:
    """Inside, nothing that the module logs reaches a logger, a callback or the progress bar.

    `self.logger` is one that does nothing. A tracker that is called past Lightning, as by wandb.log(), is not seen.
    """
    recorder = LogRecorder()
    own = vars(module)
    before: dict[str, Any] = {name: own[name] for name in ("log", "log_dict") if name in own}
    own.update(log=recorder.log, log_dict=recorder.log_dict)
    trainer = module._trainer
    loggers = [] if trainer is None else trainer.loggers
    try:
        if trainer is not None:
            trainer.loggers = [DummyLogger() for _ in loggers]
        yield recorder
    finally:
        if trainer is not None:
            trainer.loggers = loggers
        own.update(before)  # an outer recorder goes on recording
        for name in {"log", "log_dict"} - before.keys():
            own.pop(name, None)


class LogGuard:
    """Stands before `log` and `log_dict` of a module and of its trainer's callbacks while it is trained.

    Guarantee: a name that is logged in a hook of the training, such as on_train_epoch_end, is not passed on, because
    records, or losses and metrics that training_step kept, may be in its value. With `pass_on` it becomes
    `nonprivate/<name>`. `notice` is told of each name once, before anything is passed on. What hooks of validation and
    test log is passed on as it is.
    """

    def __init__(
        self, module: LightningModule, notice: Callable[[str, str], None], *, pass_on: bool, batch_size: int
    ) -> None:
        self.module, self.notice, self.pass_on, self.batch_size = module, notice, pass_on, batch_size
        self._log = module.log
        self._seen: set[str] = set()
        for holder in self._holders():
            holder.log, holder.log_dict = self.log, self.log_dict

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Pass on, rename or drop."""
        hook = self.module._current_fx_name
        said = self.pass_on and name.startswith(NOT_PRIVATE)
        if hook is None or hook.startswith(EVALUATION):
            self._log(name, value, *args, **kwargs)
            return
        # Lightning would look into the batch for its size, to weight means over an epoch; the expected one is public.
        kwargs.setdefault("batch_size", self.batch_size)
        if name in OWN_NAMES or said:
            self._log(name, value, *args, **kwargs)
            return
        if name not in self._seen:
            self._seen.add(name)
            self.notice(name, hook)
        if self.pass_on:
            self._log(f"{NOT_PRIVATE}{name}", value, *args, **kwargs)

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        """The same for each of several values."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LogGuard":
        return self  # a copy of the module, as for averages of weights, is no other training

    def __reduce__(self) -> tuple[type[LogRecorder], tuple[()]]:
        return LogRecorder, ()  # a module that is saved as a whole leaves the training behind

    def remove(self) -> None:
        """Let everything be logged again."""
        for holder in self._holders():
            for name in ("log", "log_dict"):
                vars(holder).pop(name, None)

    def _holders(self) -> list[Any]:
        # Callbacks got hold of the module's own functions when the trainer started.
        return [self.module, *self.module.trainer.callbacks]  # type: ignore[attr-defined]
