"""Logged rows that reach a tracker once per epoch, because trackers record when each row arrives."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override


class EpochRows(Logger):
    """Mixin for a logger that timestamps every row: the rows of an epoch are held back and sent together.

    The duration of a step depends on the size of the sampled batch, which is private. Rows sent one by one would
    reveal it; rows sent together reveal the duration of an epoch. They are sent with the first row of the next epoch,
    at the end of `fit` or `test` (even a failed one), and by `send_rows`. A row without an epoch, which some callbacks
    log, belongs to the current one.
    """

    _epoch: Any = None

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if metrics.get("epoch", self._epoch) != self._epoch:
            self.send_rows()
            self._epoch = metrics["epoch"]
        self._held.append((dict(metrics), step))

    @rank_zero_only
    def send_rows(self) -> None:
        """Send the rows held back so far."""
        while self._held:
            super().log_metrics(*self._held.pop(0))  # type: ignore[safe-super]

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.send_rows()
        super().finalize(status)

    @property
    def _held(self) -> list[tuple[dict[str, Any], int | None]]:
        # Not in a constructor: those of the loggers this is mixed into differ.
        return self.__dict__.setdefault("_rows", [])
