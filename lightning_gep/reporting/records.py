"""What a job records about itself on disk, written while it runs and read by sweeps and reports.

A run's directory holds `run.json` (this module), `metrics/metrics*.csv`, `checkpoints/` with the privacy card beside
the weights, and `privacy/` with the ledger. A sweep's directory holds `sweep.json` and one directory per job. All of it
is JSON and CSV. JSON files are replaced atomically, so they can be read at any time and from another machine.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import RUN_FILE, SWEEP_FILE, now, read_json, write_json

LOCK_FILE = "run.lock"
NO_PRIVACY = "none"
"""The mechanism of a job that trains with plain Lightning."""

Status = Literal["waiting", "running", "finished", "failed", "interrupted"]
Row = dict[str, float]


@dataclass
class RunRecord:
    """The state of one job. `metrics` has the newest value of everything logged, except `nonprivate/…`."""

    job: str
    """What distinguishes it from the other jobs of its sweep: `privacy.epsilon=2,seed=0`."""
    status: Status = "running"
    overrides: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    attempts: int = 1
    started: str = ""
    updated: str = ""
    seconds: float = 0.0
    """Training time over all attempts."""
    step: int = 0
    planned_steps: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    privacy: dict[str, Any] | None = None
    """The report of the privacy account; an infinite ε is the string "inf"."""
    error: str | None = None

    @property
    def without_privacy(self) -> bool:
        """Whether the job trains without any privacy mechanism."""
        return self.config.get("mechanism", {}).get("mechanism") == NO_PRIVACY

    def write(self, directory: Path) -> None:
        """Replace `run.json`."""
        self.updated = now()
        self.started = self.started or self.updated
        write_json(directory / RUN_FILE, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "RunRecord | None":
        """The record in a directory, or None. A job recorded as running whose process is gone is "interrupted"."""
        path = directory / RUN_FILE
        if not path.exists():
            return None
        record = cls(**read_json(path))
        if record.status == "running" and not is_locked(directory):
            record.status = "interrupted"
        return record


@dataclass
class SweepRecord:
    """The jobs of a sweep in order, by the names of their directories.

    `selection` is "grid" if the jobs were listed beforehand, and "repeat_and_select" if their number was drawn from the
    distribution in `repetitions`.
    """

    name: str
    jobs: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    selection: Literal["grid", "repeat_and_select"] = "grid"
    repetitions: dict[str, Any] | None = None
    started: str = ""

    def write(self, directory: Path) -> None:
        """Replace `sweep.json`."""
        self.started = self.started or now()
        write_json(directory / SWEEP_FILE, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "SweepRecord | None":
        """The record in a directory, or None."""
        path = directory / SWEEP_FILE
        return cls(**read_json(path)) if path.exists() else None


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes from training in the directory. Raises ConfigurationError if one already does."""
    lock = FileLock(directory / LOCK_FILE)
    try:
        # `is_locked` in another process holds the lock for an instant, so wait briefly.
        lock.acquire(timeout=0.5, poll_interval=0.01)
    except Timeout:
        raise ConfigurationError(
            f"Another process is training in {directory}. Wait for it, or use another output directory."
        ) from None
    try:
        yield
    finally:
        lock.release()


def is_locked(directory: Path) -> bool:
    """Whether a process is training in the directory; assumed where the lock cannot be tried (no write access)."""
    path = directory / LOCK_FILE
    if not path.exists():
        return False
    try:
        with FileLock(path).acquire(timeout=0.03, poll_interval=0.01):
            return False
    except (Timeout, OSError):
        return True


def metrics_files(directory: Path) -> list[Path]:
    """The metrics tables of all attempts, oldest first."""
    earlier = sorted((directory / "metrics").glob("metrics-*.csv"), key=lambda path: int(path.stem.split("-")[1]))
    newest = directory / "metrics" / "metrics.csv"
    return [*earlier, newest] if newest.exists() else earlier


def keep_earlier_metrics(directory: Path) -> None:
    """Rename the table of an earlier attempt, which Lightning's logger would overwrite."""
    files = metrics_files(directory)
    if files and files[-1].stem == "metrics":
        files[-1].rename(files[-1].with_name(f"metrics-{len(files)}.csv"))


def read_metrics(directory: Path) -> list[Row]:
    """Everything logged, by step. Steps lost in a crash and repeated count as last repeated."""
    rows: list[Row] = []
    own_trainer = directory / "metrics.csv"  # by Lightning's CSVLogger, without gep-train
    for path in [*metrics_files(directory), *([own_trainer] if own_trainer.exists() else [])]:
        with path.open(newline="") as file:
            newer = [row for line in csv.DictReader(file) if (row := _numbers(line)) and "step" in row]
        if newer:
            first = min(row["step"] for row in newer)
            rows = [row for row in rows if row["step"] < first] + newer
    return rows


def _numbers(line: dict[str, Any]) -> Row:
    """The cells that hold a number; the last row may be only partly written."""
    row = {}
    for name, text in line.items():
        with suppress(TypeError, ValueError):
            row[name] = float(text)
    return row
