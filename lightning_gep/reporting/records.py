"""What a job leaves on disk about itself: written while it runs, read by sweeps and reports.

A run's directory holds `run.json` (this module), `metrics/metrics*.csv`, `checkpoints/` with the privacy card beside
the weights, and `privacy/` with the ledger. A sweep's directory holds `sweep.json` and one directory per job. It is all
plain JSON and CSV, written whole or not at all, so that it can be read at any moment and from another machine.
"""

import csv
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import now, read_json, write_json

try:
    import fcntl
except ImportError:  # Windows: two sweeps in one directory are not kept apart there
    fcntl = None  # type: ignore[assignment]

RUN_FILE, SWEEP_FILE = "run.json", "sweep.json"
LOCK_FILE = "run.lock"
NO_PRIVACY = "none"
"""The mechanism of a job that trains with plain Lightning."""
SECONDS_TO_WAIT = 0.5

Status = Literal["waiting", "running", "finished", "failed", "interrupted"]
Row = dict[str, float]


@dataclass
class RunRecord:
    """The state of one job. `metrics` has the newest value of everything logged that is not `nonprivate/…`."""

    job: str
    """What tells it from the other jobs of its sweep: `privacy.epsilon=2,seed=0`."""
    status: Status = "running"
    overrides: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    attempts: int = 1
    started: str = ""
    updated: str = ""
    seconds: float = 0.0
    """Time spent training, of all attempts."""
    step: int = 0
    planned_steps: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    privacy: dict[str, Any] | None = None
    """The report of the privacy account; an infinite ε is the string "inf"."""
    error: str | None = None

    @property
    def without_privacy(self) -> bool:
        """Whether the job trains on the records with no privacy mechanism at all."""
        return self.config.get("mechanism", {}).get("mechanism") == NO_PRIVACY

    def write(self, directory: Path) -> None:
        """Replace `run.json`."""
        self.updated = now()
        self.started = self.started or self.updated
        write_json(directory / RUN_FILE, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "RunRecord | None":
        """The record in a directory, or None if there is none. A dead job that says "running" is "interrupted"."""
        path = directory / RUN_FILE
        if not path.exists():
            return None
        record = cls(**read_json(path))
        if record.status == "running" and not is_locked(directory):
            record.status = "interrupted"
        return record


@dataclass
class SweepRecord:
    """The jobs of a sweep, in order: each the name of its directory.

    `selection` is "grid" for jobs that were listed beforehand, and "repeat_and_select" if their number was drawn at
    random from the distribution in `repetitions`.
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
        """The record in a directory, or None if there is none."""
        path = directory / SWEEP_FILE
        return cls(**read_json(path)) if path.exists() else None


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Inside, no other process works in the directory. Raises ConfigurationError if one does already."""
    with (directory / LOCK_FILE).open("a") as file:
        # Who asks `is_locked` holds a shared lock for a moment: so there is some patience.
        end = time.monotonic() + SECONDS_TO_WAIT
        while not (taken := _take_lock(file)) and time.monotonic() < end:
            time.sleep(0.01)
        if not taken:
            raise ConfigurationError(
                f"Another process is training in {directory}. Wait for it, or use another output directory."
            )
        yield


def _take_lock(file: IO[str]) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def is_locked(directory: Path) -> bool:
    """Whether a process works in the directory. Asking takes a shared lock for a moment."""
    path = directory / LOCK_FILE
    if fcntl is None or not path.exists():
        return fcntl is None
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def metrics_files(directory: Path) -> list[Path]:
    """The tables of all attempts, oldest first."""
    earlier = sorted((directory / "metrics").glob("metrics-*.csv"), key=lambda path: int(path.stem.split("-")[1]))
    newest = directory / "metrics" / "metrics.csv"
    return [*earlier, newest] if newest.exists() else earlier


def keep_earlier_metrics(directory: Path) -> None:
    """Move the table of an earlier attempt aside: Lightning's logger would overwrite it."""
    files = metrics_files(directory)
    if files and files[-1].stem == "metrics":
        files[-1].rename(files[-1].with_name(f"metrics-{len(files)}.csv"))


def read_metrics(directory: Path) -> list[Row]:
    """What was logged, in order of steps. A step that was lost in a crash and made again counts as last made."""
    rows: list[Row] = []
    for path in metrics_files(directory):
        with path.open(newline="") as file:
            newer = [row for line in csv.DictReader(file) if (row := _numbers(line)) and "step" in row]
        if newer:
            first = min(row["step"] for row in newer)
            rows = [row for row in rows if row["step"] < first] + newer
    return rows


def _numbers(line: dict[str, Any]) -> Row:
    """The cells of a table's row that hold a number; a row that is still being written may have other ones."""
    return {name: number for name, text in line.items() if (number := _number(text)) is not None}


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None
