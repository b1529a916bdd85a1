"""Keeping what `training_step` logs from being published: it is a function of private data."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule


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
    """Inside, nothing that the module logs reaches a logger, a callback or the progress bar."""
    recorder = LogRecorder()
    own = vars(module)
    before: dict[str, Any] = {name: own[name] for name in ("log", "log_dict") if name in own}
    own.update(log=recorder.log, log_dict=recorder.log_dict)
    try:
        yield recorder
    finally:
        for name in ("log", "log_dict"):
            own.pop(name, None)
        own.update(before)  # an outer recorder goes on recording
