"""Directories of runs and sweeps as plain values. Damaged files become warnings and hide nothing else."""

import csv
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import CARD_FILE, RUN_FILE, SWEEP_FILE, read_json
from lightning_gep.reporting.records import Row, RunRecord, SweepRecord, read_metrics

Card = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One job as recorded on disk. Unknown values are None; an infinite ε is `math.inf`."""

    job: str
    status: str
    place: str = ""
    """Its directory, relative to the reported one."""
    overrides: dict[str, str] = field(default_factory=dict)
    mechanism: str = ""
    k: int | None = None
    data: str = ""
    target_epsilon: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    private: bool | None = None
    noise_multiplier: float | None = None
    step: int | None = None
    planned_steps: int | None = None
    seconds: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    card: Card | None = None
    error: str | None = None

    @property
    def not_private(self) -> bool:
        """Whether the run is known to have no guarantee: no noise, or noise from a seed."""
        return self.private is False or self.epsilon == math.inf

    @property
    def finished(self) -> bool:
        """Whether its results are final."""
        return self.status == "finished"

    @property
    def readable(self) -> bool:
        """Whether its record could be read."""
        return self.status != "unreadable"

    def newest(self, name: str) -> float | None:
        """The last finite value logged under a name."""
        return self.metrics.get(name, next((value for _, value in reversed(self.curve(name))), None))

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(step, value) for every finite value logged under a name."""
        return [(row["step"], row[name]) for row in self.rows if math.isfinite(row.get(name, math.nan))]


@dataclass(frozen=True)
class Sweep:
    """A sweep and its privacy card, which is written after the last job."""

    name: str
    runs: list[Run]
    card: Card | None


@dataclass(frozen=True)
class Collection:
    """Everything found under one directory."""

    title: str
    runs: list[Run]
    sweeps: list[Sweep]
    warnings: list[str]

    @property
    def single(self) -> Run | None:
        """The run, if the directory holds one run and no sweep."""
        return self.runs[0] if len(self.runs) == 1 and not self.sweeps else None


def load(directory: Path) -> Collection:
    """All runs in or below a directory; those of a sweep in its order.

    Raises ConfigurationError for a directory that does not exist or has no readable run.
    """
    if not directory.is_dir():
        raise ConfigurationError(f"There is no directory {directory}. Pass the directory of a run or a sweep.")
    reader = _Reader(directory)
    runs = list(reader.runs.values())
    if not any(run.readable for run in runs):
        nothing = f"There is no {RUN_FILE} or {CARD_FILE} in or below {directory}. Pass the directory of some run."
        raise ConfigurationError(next(iter(reader.warnings), nothing))
    named = [sweep.name for sweep in reader.sweeps] or [run.job for run in runs]
    title = named[0] if len(named) == 1 and named[0] else directory.resolve().name
    return Collection(title, runs, reader.sweeps, reader.warnings)


class _Reader:
    """Reads one directory tree and collects what could not be read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs: dict[Path, Run] = {}
        self.sweeps: list[Sweep] = []
        self.warnings: list[str] = []
        for directory in _directories(root):
            if (directory / SWEEP_FILE).exists():
                self._try(directory / SWEEP_FILE, lambda: self._sweep(directory))  # noqa: B023  # called now
            if (directory / RUN_FILE).exists():
                self._run(directory)
            else:
                self._cards_alone(directory)

    def _sweep(self, directory: Path) -> None:
        record = SweepRecord(**read_json(directory / SWEEP_FILE))
        runs = [self._run(directory / str(job)) for job in record.jobs]
        name = str(record.name) or directory.resolve().name
        self.sweeps.append(Sweep(name, runs, self._card(directory / CARD_FILE)))

    def _run(self, directory: Path) -> Run:
        """The run in a directory, read once; a job of a sweep that has no record yet is waiting."""
        if directory not in self.runs:
            name, place = directory.resolve().name, directory.relative_to(self.root).as_posix()
            place = "" if place == "." else place
            rows = self._try(directory / "metrics", lambda: read_metrics(directory)) or []
            card = self._card(directory / "checkpoints" / CARD_FILE)
            # All that is known of a waiting job is in its name. A comma that no assignment follows belongs to a list.
            waiting = RunRecord(name, "waiting", re.split(r",(?=[^,=\[({]+=)", name))
            found = self._try(
                directory / RUN_FILE, lambda: run_of(RunRecord.read(directory) or waiting, place, rows, card, name)
            )
            self.runs[directory] = found or Run(name, "unreadable", place, error=self.warnings[-1])
        return self.runs[directory]

    def _cards_alone(self, directory: Path) -> None:
        """Runs of a Trainer of one's own, which leaves privacy cards and, with Lightning's CSVLogger, a table.

        A run that was resumed in another directory has a card in both; the one that counts more steps is the newer.
        """
        owner = directory.parent if directory.name in ("checkpoints", "privacy") else directory
        place = Path(os.path.relpath(owner, self.root)).as_posix()
        for path in sorted(directory.glob(f"{Path(CARD_FILE).stem}*.json")):
            card = self._card(path)
            if card is None or card.get("kind") != "run":  # or of a sweep
                continue
            run_id = str(card.get("run_id"))
            newest = path.name == CARD_FILE
            rows = self._try(owner, lambda: read_metrics(owner)) or [] if newest else []
            name = owner.resolve().name if place in (".", "..") else place
            name = name if newest else f"{name} ({run_id[:8]})"
            run = self._try(path, lambda: run_of(_record_of(card, name), place, rows, card))  # noqa: B023  # called now
            same = [key for key, other in self.runs.items() if inner(other.card, "run_id") == run_id]
            if run is not None and all((self.runs[key].step or 0) < (run.step or 0) for key in same):
                self.runs = {key: other for key, other in self.runs.items() if key not in same} | {path: run}

    def _card(self, path: Path) -> Card | None:
        return self._try(path, lambda: dict(read_json(path))) if path.exists() else None

    def _try(self, path: Path, read: Callable[[], T]) -> T | None:
        """What `read` returns; None and a warning if the file is damaged or still being written."""
        try:
            return read()
        except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
            self.warnings.append(f"{path} cannot be read: {' '.join(str(error).split())}")
            return None


def _directories(root: Path) -> Iterator[Path]:
    """The directory and all below it in order, except hidden ones and those inside runs."""
    for path, below, files in os.walk(root):
        inside_a_run = RUN_FILE in files and SWEEP_FILE not in files
        below[:] = [] if inside_a_run else sorted(name for name in below if not name.startswith("."))
        yield Path(path)


def run_of(
    record: RunRecord, place: str = "", rows: Sequence[Row] = (), card: Card | None = None, name: str = ""
) -> Run:
    """The record with its settings looked up and every number checked; a field of the wrong type raises."""
    privacy, config = record.privacy or {}, record.config
    overrides = _parse_overrides(record.overrides)
    mechanism = str(inner(config, "mechanism", "mechanism") or overrides.get("mechanism", ""))
    # k="auto" is decided at setup and recorded on the card.
    sizes = (inner(config, "mechanism", "k"), inner(card, "mechanism", "k"), overrides.get("mechanism.k"))
    k = next((int(size) for size in map(str, sizes) if size.isdigit()), None)
    private, target = privacy.get("private"), config.get("privacy", {"epsilon": overrides.get("privacy.epsilon")})
    metrics = {str(name): number(value) for name, value in record.metrics.items()}
    return Run(
        job=record.job or name,
        status=str(record.status),
        place=place,
        overrides=overrides,
        mechanism=mechanism,
        k=k if mechanism in ("gep", "bgep", "") else None,
        data=data_name(config.get("data")),
        target_epsilon=number(privacy.get("target_epsilon") if privacy else inner(target, "epsilon")),
        epsilon=number(privacy.get("epsilon")),
        delta=number(privacy.get("delta") if privacy else inner(config, "privacy", "delta")),
        private=None if private is None else bool(private),
        noise_multiplier=number(privacy.get("noise_multiplier")),
        step=None if record.status == "waiting" else record.step or 0,
        planned_steps=record.planned_steps or privacy.get("planned_steps"),
        seconds=number(record.seconds) or None,
        metrics={name: value for name, value in metrics.items() if value is not None and math.isfinite(value)},
        rows=list(rows),
        card=card,
        error=None if record.error is None else str(record.error),
    )


def _record_of(card: Card, name: str) -> RunRecord:
    """What a privacy card alone tells of its run."""
    guarantee, mechanism, steps = (inner(card, key) or {} for key in ("guarantee", "mechanism", "steps"))
    spent = inner(guarantee, "epsilon_spent", str(guarantee.get("accountant")))
    status: Any = {"training": "running", "stopped": "interrupted"}.get(card.get("status", ""), "finished")
    return RunRecord(
        name,
        status,
        config={"mechanism": {"mechanism": mechanism.get("name")}},
        step=steps.get("counted") or 0,
        planned_steps=steps.get("planned"),
        privacy={**guarantee, "epsilon": spent, "noise_multiplier": mechanism.get("noise_multiplier")},
    )


def _parse_overrides(overrides: Iterable[Any]) -> dict[str, str]:
    """`["+a.b=1", …]` → `{"a.b": "1", …}`; anything that is not an assignment is dropped."""
    pairs = (str(text).split("=", 1) for text in overrides if "=" in str(text))
    return {name.lstrip("+~"): value for name, value in pairs}


def inner(tree: Any, *path: str) -> Any:
    """A value deep in nested dictionaries, or None."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def number(value: Any) -> float | None:
    """A number from JSON or a command line, including "inf"; None for anything else, including NaN."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(found) else found


def data_name(config: Any) -> str:
    """A short name of the dataset: that of its class, after the name in its settings, if they have one."""
    kind = re.sub(r"(Data)?(Module)?$", "", str(inner(config, "_target_") or "").rpartition(".")[2])
    name = inner(config, "name") or inner(config, "dataset")
    return f"{name} ({kind})" if name and kind else str(name or kind)
