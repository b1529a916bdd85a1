"""What training logs is withheld, because it may depend on private records."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

from lightning_gep.strategy.internals import attached_trainer, current_hook

OWN_NAMES = {
    "ε",
    *(f"privacy/{name}" for name in ("epsilon", "delta", "noise_multiplier", "steps", "private", "remaining_epsilon")),
    *(f"performance/{name}" for name in ("steps_per_second", "records_per_second", "peak_memory_mb")),
}
"""What the callbacks of this package log in training; none of it depends on the records."""
NOT_PRIVATE = "nonprivate/"
EVALUATION = ("validation", "on_validation", "test", "on_test", "predict", "on_predict", "on_sanity")
"""Prefixes of hooks that see no training records."""
SECONDS_UNNOTICED = 3.0


def progress_bar(what: str, total: int) -> Any:
    """A bar with the time that is left, on a terminal, once something takes longer than nobody notices."""
    hidden = None if rank_zero_only.rank == 0 else True  # type: ignore[attr-defined]  # None: if it is no terminal
    return tqdm(total=total, desc=what, unit=" records", delay=SECONDS_UNNOTICED, leave=False, disable=hidden)


class LogRecorder:
    """Replaces `self.log` and `self.log_dict`, and remembers what would have been logged."""

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

    `self.logger` does nothing. A tracker called without Lightning, such as wandb.log(), is not intercepted.
    """
    recorder = LogRecorder()
    own = vars(module)
    before: dict[str, Any] = {name: own[name] for name in ("log", "log_dict") if name in own}
    own.update(log=recorder.log, log_dict=recorder.log_dict)
    trainer = attached_trainer(module)
    loggers = [] if trainer is None else trainer.loggers
    try:
        if trainer is not None:
            trainer.loggers = [DummyLogger() for _ in loggers]
        yield recorder
    finally:
        if trainer is not None:
            trainer.loggers = loggers
        own.update(before)  # an outer recorder continues to record
        for name in {"log", "log_dict"} - before.keys():
            own.pop(name, None)


class LogGuard:
    """Replaces `log` and `log_dict` of a module and of its trainer's callbacks during training.

    Guarantee: what a training hook such as on_train_epoch_end logs is not passed on, because it may depend on records,
    or on losses and metrics that training_step kept. With `pass_on` it is logged as `nonprivate/<name>`. `notice` gets
    each name once, before anything is passed on. What validation and test hooks log is passed on unchanged.
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
        """Pass on, rename or drop a value."""
        hook = current_hook(self.module)
        if hook is None or hook.startswith(EVALUATION):
            self._log(name, value, *args, **kwargs)
            return
        # Lightning would read the batch size from the batch to weight means over an epoch; the expected one is public.
        kwargs.setdefault("batch_size", self.batch_size)
        if name in OWN_NAMES or (self.pass_on and name.startswith(NOT_PRIVATE)):
            self._log(name, value, *args, **kwargs)
            return
        if name not in self._seen:
            self._seen.add(name)
            self.notice(name, hook)
        if self.pass_on:
            self._log(f"{NOT_PRIVATE}{name}", value, *args, **kwargs)

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        """The same for several values."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LogGuard":
        return self  # a copy of the module, as for weight averaging, belongs to the same training

    def __reduce__(self) -> tuple[type[LogRecorder], tuple[()]]:
        return LogRecorder, ()  # a module that is pickled leaves the training behind

    def remove(self) -> None:
        """Let everything be logged again."""
        for holder in self._holders():
            for name in ("log", "log_dict"):
                vars(holder).pop(name, None)

    def _holders(self) -> list[Any]:
        # The trainer has given its callbacks the functions of the module.
        return [self.module, *attached_trainer(self.module).callbacks]


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, nothing is printed or warned of: the user's code is tried many times, on unusual records."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
