"""Directories of runs and sweeps as plain records. Whatever is damaged becomes a warning and hides nothing else."""

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import CARD_FILE, read_json
from lightning_gep.reporting.records import RUN_FILE, SWEEP_FILE, Row, RunRecord, SweepRecord, read_metrics

Card = dict[str, Any]

# What reading a file that someone else wrote, or is still writing, can raise.
UNREADABLE = (OSError, ValueError, TypeError, csv.Error)


@dataclass(frozen=True)
class Run:
    """One job as it stands on disk. A value that is not known (yet) is None; an infinite ε is `math.inf`."""

    job: str
    status: str
    place: str = ""
    """Its directory, seen from the one that is reported."""
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
        """Whether it is known that the run gives no guarantee: no noise, or noise that can be repeated."""
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
        """(step, value) of everything finite that was logged under a name."""
        return [(row["step"], row[name]) for row in self.rows if math.isfinite(row.get(name, math.nan))]


@dataclass(frozen=True)
class Sweep:
    """A sweep and its privacy card, which is written when the last job has ended."""

    name: str
    place: str
    jobs: list[str]
    selection: str
    card: Card | None


@dataclass(frozen=True)
class Collection:
    """Everything found under one directory. `damaged` names the run files that could not be read."""

    title: str
    runs: list[Run]
    sweeps: list[Sweep]
    warnings: list[str]
    damaged: list[str]

    @property
    def single(self) -> Run | None:
        """The run, if the directory is that of one run and not of a sweep."""
        return self.runs[0] if len(self.runs) == 1 and not self.sweeps else None


def load(directory: Path) -> Collection:
    """All runs at or below a directory, in the order of their sweeps.

    Raises ConfigurationError for a directory that is missing or without a readable run.
    """
    if not directory.is_dir():
        raise ConfigurationError(f"There is no directory {directory}. Give the directory of a run or of a sweep.")
    reader = _Reader(directory)
    runs = reader.runs()
    if not any(run.status != "unreadable" for run in runs):
        raise ConfigurationError(
            reader.warnings[0]
            if reader.warnings
            else f"There is no {RUN_FILE} in or below {directory}. Give the directory of a run or of a sweep."
        )
    name = reader.sweeps[0].name if len(reader.sweeps) == 1 else ""
    only = runs[0].job if len(runs) == 1 and not reader.sweeps else ""
    title = name or only or directory.resolve().name
    return Collection(title, runs, reader.sweeps, reader.warnings, reader.damaged)


class _Reader:
    """Reads one tree of directories and remembers what it could not read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []
        self.damaged: list[str] = []
        self.sweeps: list[Sweep] = []

    def runs(self) -> list[Run]:
        found: dict[Path, Run] = {}
        waiting: list[Path] = []
        for directory in directories(self.root):
            if (directory / SWEEP_FILE).exists():
                waiting += self._sweep(directory)
            if (directory / RUN_FILE).exists():
                found[directory] = self._run(directory)
        # The jobs of a sweep come first, as it lists them; what no sweep lists follows.
        order = dict.fromkeys([*waiting, *found])
        return [found[path] if path in found else self._waiting(path) for path in order]

    def _sweep(self, directory: Path) -> list[Path]:
        """Remember the sweep; the directories of its jobs, whether they exist or not."""
        try:
            record = SweepRecord.read(directory)
            assert record is not None
            jobs = [str(job) for job in record.jobs]
        except UNREADABLE as error:
            self._warn(directory / SWEEP_FILE, error)
            return []
        card = self._card(directory / CARD_FILE)
        name = str(record.name) or directory.resolve().name
        self.sweeps.append(Sweep(name, self._place(directory), jobs, str(record.selection), card))
        return [directory / job for job in jobs]

    def _run(self, directory: Path) -> Run:
        try:
            record = RunRecord.read(directory)
            assert record is not None
            check_record(record)
        except UNREADABLE as error:
            self.damaged.append(str(directory / RUN_FILE))
            message = self._warn(directory / RUN_FILE, error)
            return Run(directory.resolve().name, "unreadable", self._place(directory), error=message)
        try:
            rows = read_metrics(directory)
        except UNREADABLE as error:
            self._warn(directory / "metrics", error)
            rows = []
        card = self._card(directory / "checkpoints" / CARD_FILE)
        return run_of(record, self._place(directory), rows, card, directory.resolve().name)

    def _waiting(self, directory: Path) -> Run:
        """A job that its sweep lists and that has not begun: all that is known is in its name."""
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
        if not path.exists():
            return None
        try:
            card = read_json(path)
        except UNREADABLE as error:
            self._warn(path, error)
            return None
        if isinstance(card, dict):
            return card
        self._warn(path, "it is not a JSON object")
        return None

    def _place(self, directory: Path) -> str:
        place = directory.relative_to(self.root).as_posix()
        return "" if place == "." else place

    def _warn(self, path: Path, error: object) -> str:
        message = f"{path} cannot be read: {' '.join(str(error).split())}"
        self.warnings.append(message)
        return message


def directories(root: Path) -> Iterator[Path]:
    """The directory and all below it, in natural order, without what lies inside of runs or is hidden."""
    for path, below, files in os.walk(root):
        inside_a_run = RUN_FILE in files and SWEEP_FILE not in files
        below[:] = [] if inside_a_run else sorted((name for name in below if not name.startswith(".")), key=natural)
        yield Path(path)


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A key that sorts job-2 before job-10."""
    parts = re.findall(r"([0-9]+)|([^0-9]+)", text)
    return [(not digits, int(digits) if digits else 0, letters) for digits, letters in parts]


def check_record(record: RunRecord) -> None:
    """Raises ValueError for a record whose fields have other types than they should."""
    kinds: dict[str, type | tuple[type, ...]] = {
        "job": str,
        "status": str,
        "overrides": list,
        "config": dict,
        "metrics": dict,
        "privacy": (dict, type(None)),
        "error": (str, type(None)),
    }
    for name, kind in kinds.items():
        if not isinstance(getattr(record, name), kind):
            raise ValueError(f"{name} is {json.dumps(getattr(record, name), default=str)[:80]}")


def run_of(record: RunRecord, place: str, rows: list[Row], card: Card | None, name: str) -> Run:
    """The record with its settings looked up and every number checked."""
    privacy, config = record.privacy or {}, record.config
    overrides = parse_overrides(record.overrides or split_job(record.job))
    mechanism = str(inner(config, "mechanism", "mechanism") or overrides.get("mechanism", ""))
    k = integer(inner(config, "mechanism", "k"))
    epsilon = number(privacy.get("epsilon"))
    private = privacy.get("private")
    target = privacy.get("target_epsilon") if record.privacy else inner(config, "privacy", "epsilon")
    return Run(
        job=record.job or name,
        status=record.status,
        place=place,
        overrides=overrides,
        mechanism=mechanism,
        # k="auto" is decided at setup; the card knows what came of it.
        k=None if mechanism == "gp" else k if k is not None else integer(inner(card, "mechanism", "k")),
        data=data_name(config.get("data")),
        target_epsilon=number(target),
        epsilon=epsilon,
        delta=number(privacy.get("delta") if record.privacy else inner(config, "privacy", "delta")),
        private=bool(private) if private is not None else None,
        noise_multiplier=number(privacy.get("noise_multiplier")),
        sample_rate=number(privacy.get("sample_rate")),
        accountant=str(privacy.get("accountant") or ""),
        step=integer(record.step) or 0,
        planned_steps=integer(record.planned_steps) or integer(privacy.get("planned_steps")),
        seconds=number(record.seconds),
        metrics=finite_numbers(record.metrics),
        rows=rows,
        card=card,
        error=record.error,
    )


def split_job(job: str) -> list[str]:
    """`a=1,b=[2,3]` → `a=1` and `b=[2,3]`: commas inside brackets and braces belong to the value."""
    parts, depth = [""], 0
    for letter in job:
        depth += (letter in "[{(") - (letter in ")}]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parse_overrides(overrides: Iterable[Any]) -> dict[str, str]:
    """`["+a.b=1", …]` → `{"a.b": "1", …}`; what is not an assignment is left out."""
    pairs = (str(text).split("=", 1) for text in overrides if "=" in str(text))
    return {name.lstrip("+~"): value for name, value in pairs}


def inner(tree: Any, *path: str) -> Any:
    """A value deep in nested dictionaries, or None."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def number(value: Any) -> float | None:
    """A number from what JSON holds, "inf" included; None for anything else, NaN included."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(found) else found


def integer(value: Any) -> int | None:
    """A whole number from what JSON holds, or None."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found == int(found) else None


def finite_numbers(values: dict[str, Any]) -> dict[str, float]:
    """The entries that are finite numbers."""
    pairs = ((str(name), number(value)) for name, value in values.items())
    return {name: value for name, value in pairs if value is not None and math.isfinite(value)}


def data_name(config: Any) -> str:
    """A short name of the data set: `MNIST` for the paper's, else from the data module's class."""
    target = str(inner(config, "_target_") or "")
    named = str(inner(config, "name") or inner(config, "dataset") or "")
    words = f"{target.rpartition('.')[2]} {named}".lower()
    if target.endswith("FeaturesDataModule"):  # another experiment of the paper than the images
        return f"features of {named}"
    if re.search(r"(?<![a-z])mnist", words) and "fashion" not in words:
        return "MNIST"
    if "svhn" in words:
        return "SVHN"
    if re.search(r"cifar[-_]?10(?![0-9])", words):
        return "CIFAR-10"
    return named or re.sub(r"(Data)?(Module)?$", "", target.rpartition(".")[2])
