"""Directories of runs and sweeps as plain values. Damaged files become warnings and hide nothing else."""

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import CARD_FILE, RUN_FILE, SWEEP_FILE, read_json
from lightning_gep.reporting.records import Row, RunRecord, SweepRecord, read_metrics

Card = dict[str, Any]

# What reading a file that is damaged or still being written can raise.
UNREADABLE = (OSError, ValueError, TypeError, AttributeError, csv.Error)


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
    sample_rate: float | None = None
    accountant: str = ""
    step: int = 0
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

    def newest(self, name: str) -> float | None:
        """The last finite value logged under a name."""
        if name in self.metrics:
            return self.metrics[name]
        return next((row[name] for row in reversed(self.rows) if math.isfinite(row.get(name, math.nan))), None)

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(step, value) for every finite value logged under a name."""
        return [(row["step"], row[name]) for row in self.rows if math.isfinite(row.get(name, math.nan))]


@dataclass(frozen=True)
class Sweep:
    """A sweep and its privacy card, which is written after the last job."""

    name: str
    place: str
    jobs: list[str]
    card: Card | None


@dataclass(frozen=True)
class Collection:
    """Everything found under one directory. `damaged` lists the run files that could not be read."""

    title: str
    runs: list[Run]
    sweeps: list[Sweep]
    warnings: list[str]
    damaged: list[str]

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
    runs = reader.runs()
    if all(run.status == "unreadable" for run in runs):
        nothing = f"There is no {RUN_FILE} in or below {directory}. Pass the directory of a run or a sweep."
        raise ConfigurationError(next(iter(reader.warnings), nothing))
    named = [sweep.name for sweep in reader.sweeps] or [run.job for run in runs]
    title = named[0] if len(named) == 1 and named[0] else directory.resolve().name
    return Collection(title, runs, reader.sweeps, reader.warnings, reader.damaged)


class _Reader:
    """Reads one directory tree and collects what could not be read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []
        self.damaged: list[str] = []
        self.sweeps: list[Sweep] = []

    def runs(self) -> list[Run]:
        found: dict[Path, Run] = {}
        listed: list[Path] = []
        for directory in directories(self.root):
            if (directory / SWEEP_FILE).exists():
                listed += self._sweep(directory)
            if (directory / RUN_FILE).exists():
                found[directory] = self._run(directory)
        return [found.get(path) or self._waiting(path) for path in dict.fromkeys([*listed, *found])]

    def _sweep(self, directory: Path) -> list[Path]:
        """Remember the sweep; returns the directories of its jobs, which may not exist yet."""
        try:
            record = SweepRecord.read(directory)
            assert record is not None
            jobs = [str(job) for job in record.jobs]
        except UNREADABLE as error:
            self._warn(directory / SWEEP_FILE, error)
            return []
        name = str(record.name) or directory.resolve().name
        self.sweeps.append(Sweep(name, self._place(directory), jobs, self._card(directory / CARD_FILE)))
        return [directory / job for job in jobs]

    def _run(self, directory: Path) -> Run:
        name, place = directory.resolve().name, self._place(directory)
        rows: list[Row] = []
        try:
            rows = read_metrics(directory)
        except UNREADABLE as error:
            self._warn(directory / "metrics", error)
        card = self._card(directory / "checkpoints" / CARD_FILE)
        try:
            record = RunRecord.read(directory)
            assert record is not None
            return run_of(record, place, rows, card, name)
        except UNREADABLE as error:
            self.damaged.append(str(directory / RUN_FILE))
            return Run(name, "unreadable", place, error=self._warn(directory / RUN_FILE, error))

    def _waiting(self, directory: Path) -> Run:
        """A job of a sweep that has not started: all that is known is in its name."""
        overrides = parse_overrides(split_job(directory.name))
        return Run(
            directory.name,
            "waiting",
            self._place(directory),
            overrides,
            mechanism=overrides.get("mechanism", ""),
            k=integer(overrides.get("mechanism.k")),
            target_epsilon=number(overrides.get("privacy.epsilon")),
        )

    def _card(self, path: Path) -> Card | None:
        try:
            card = read_json(path) if path.exists() else None
            if card is not None and not isinstance(card, dict):
                raise ValueError("it is not a JSON object")
        except UNREADABLE as error:
            self._warn(path, error)
            return None
        return card

    def _place(self, directory: Path) -> str:
        place = directory.relative_to(self.root).as_posix()
        return "" if place == "." else place

    def _warn(self, path: Path, error: object) -> str:
        self.warnings.append(f"{path} cannot be read: {' '.join(str(error).split())}")
        return self.warnings[-1]


def directories(root: Path) -> Iterator[Path]:
    """The directory and all below it in natural order, except hidden ones and those inside runs."""
    for path, below, files in os.walk(root):
        inside_a_run = RUN_FILE in files and SWEEP_FILE not in files
        below[:] = [] if inside_a_run else sorted((name for name in below if not name.startswith(".")), key=natural)
        yield Path(path)


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts job-2 before job-10."""
    parts = re.findall(r"([0-9]+)|([^0-9]+)", text)
    return [(not digits, int(digits or 0), letters) for digits, letters in parts]


def run_of(record: RunRecord, place: str, rows: list[Row], card: Card | None, name: str) -> Run:
    """The record with its settings looked up and every number checked; a field of the wrong type raises."""
    privacy, config = record.privacy or {}, record.config
    overrides = parse_overrides(record.overrides or split_job(record.job))
    mechanism = str(inner(config, "mechanism", "mechanism") or overrides.get("mechanism", ""))
    # k="auto" is decided at setup and recorded on the card.
    k = next((k for tree in (config, card) if (k := integer(inner(tree, "mechanism", "k"))) is not None), None)
    private = privacy.get("private")
    return Run(
        job=record.job or name,
        status=str(record.status),
        place=place,
        overrides=overrides,
        mechanism=mechanism,
        k=k if mechanism in ("gep", "bgep") else None,
        data=data_name(config.get("data")),
        target_epsilon=number(privacy.get("target_epsilon") if privacy else inner(config, "privacy", "epsilon")),
        epsilon=number(privacy.get("epsilon")),
        delta=number(privacy.get("delta") if privacy else inner(config, "privacy", "delta")),
        private=None if private is None else bool(private),
        noise_multiplier=number(privacy.get("noise_multiplier")),
        sample_rate=number(privacy.get("sample_rate")),
        accountant=str(privacy.get("accountant") or ""),
        step=integer(record.step) or 0,
        planned_steps=integer(record.planned_steps) or integer(privacy.get("planned_steps")),
        seconds=number(record.seconds),
        metrics={
            str(name): value
            for name, found in record.metrics.items()
            if (value := number(found)) is not None and math.isfinite(value)
        },
        rows=rows,
        card=card,
        error=None if record.error is None else str(record.error),
    )


def split_job(job: str) -> list[str]:
    """`a=1,b=[2,3]` → `a=1` and `b=[2,3]`: commas inside brackets belong to the value."""
    parts, depth = [""], 0
    for letter in job:
        depth += (letter in "[{(") - (letter in ")}]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parse_overrides(overrides: Iterable[Any]) -> dict[str, str]:
    """`["+a.b=1", …]` → `{"a.b": "1", …}`; anything that is not an assignment is dropped."""
    pairs = (str(text).split("=", 1) for text in overrides if "=" in str(text))
    return {name.lstrip("+~"): value for name, value in pairs}


def inner(tree: Any, *path: str) -> Any:
    """A value deep in nested dictionaries, or None."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def number(value: Any) -> float | None:
    """A number from JSON, including "inf"; None for anything else, including NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(found) else found


def integer(value: Any) -> int | None:
    """A whole number from JSON, or None."""
    found = number(value)
    return int(found) if found is not None and found.is_integer() else None


def data_name(config: Any) -> str:
    """A short name of the dataset: `MNIST` and the paper's others by name, else from the data module's class."""
    kind = str(inner(config, "_target_") or "").rpartition(".")[2]
    named = str(inner(config, "name") or inner(config, "dataset") or "")
    words = f"{kind} {named}".lower()
    if kind == "FeaturesDataModule":  # a different experiment of the paper than training on the images
        return f"features of {named}"
    if re.search(r"(?<![a-z])mnist", words) and "fashion" not in words:
        return "MNIST"
    if "svhn" in words:
        return "SVHN"
    if re.search(r"cifar[-_]?10(?![0-9])", words):
        return "CIFAR-10"
    return named or re.sub(r"(Data)?(Module)?$", "", kind)
