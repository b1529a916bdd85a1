"""Logged rows that reach a tracker an epoch at a time: trackers note when each row came."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override


class EpochRows(Logger):
    """Mixed into a logger that adds the time to every row: rows of an epoch are kept, and passed on together.

    How long a step takes depends on the batch it drew, whose size is private. Passed on one by one, rows would show
    the time of every few steps; together they show that of an epoch. Rows are passed on with the first row of another
    epoch, at the end of `fit` or `test` (also one that failed), and by `send_rows`. A row that names no epoch, as some
    callbacks make, belongs to the epoch it comes in.
    """

    _rows: list[tuple[dict[str, Any], int | None]]
    _epoch: Any = None

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if metrics.get("epoch", self._epoch) != self._epoch:
            self.send_rows()
            self._epoch = metrics["epoch"]
        self._kept().append((dict(metrics), step))

    @rank_zero_only
    def send_rows(self) -> None:
        """Pass on what was kept."""
        rows = self._kept()
        while rows:
            metrics, step = rows.pop(0)
            super().log_metrics(metrics, step)  # type: ignore[safe-super]

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.send_rows()
        super().finalize(status)

    def _kept(self) -> list[tuple[dict[str, Any], int | None]]:
        # Not made in a constructor: the loggers this is mixed into have constructors of all kinds.
        return self.__dict__.setdefault("_rows", [])
