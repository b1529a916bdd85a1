"""The result of a run, as it is kept: what was asked for, what came out, and what it was made with."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from lightning_gep.privacy.card.software import software
from lightning_gep.privacy.files import CARD_FILE, read_json
from lightning_gep.reporting.records import RunRecord, read_metrics
from recipes.running.settings import Settings
from recipes.tables.types import Run, Table

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
"""Where the results are that the page shows."""
MACHINE = ("processor", "cores", "memory_gb", "system")
MOST_POINTS = 40
CURVES = {
    "test_accuracy": "test/accuracy",
    "validation_accuracy": "val/accuracy",
    "epsilon": "privacy/epsilon",
    "nonprivate_projection_error": "nonprivate/projection_error",
}
"""What is kept of the metrics over training, and its name in them."""

Result = dict[str, Any]


def result_file(output: Path, run: Run) -> Path:
    """Where the result of a run is kept."""
    return output / "runs" / f"{run.name}.json"


def make_result(run: Run, record: RunRecord, directory: Path, settings: Settings, extra: Sequence[str]) -> Result:
    """The result of a run that is finished; `extra` are overrides that are not the cell's own."""
    privacy, machine = record.privacy or {}, description()
    return {
        "table": run.table,
        "cell": run.cell.name,
        "experiment": run.cell.experiment,
        "overrides": list(run.cell.overrides),
        "extra_overrides": list(extra),
        "seed": settings["seed"],
        "test_accuracy": rounded(record.metrics.get("test/accuracy")),
        "validation_accuracy": rounded(record.metrics.get("val/accuracy")),
        **{name: privacy.get(name) for name in ("epsilon", "delta", "noise_multiplier", "sample_rate", "accountant")},
        "private": privacy.get("private"),
        "steps": record.step,
        "steps_counted": privacy.get("steps"),
        "seconds": round(record.seconds, 1),
        "attempts": record.attempts,
        "date": record.updated,
        "machine": {name: machine[name] for name in MACHINE},
        "versions": made_with(directory),
        "config": settings,
        "curves": curves(directory, record.step),
    }


def made_with(directory: Path) -> dict[str, Any]:
    """Versions and revision as the run noted them when it began: those of now may be others."""
    card = directory / "checkpoints" / CARD_FILE
    now = software()
    return {name: read_json(card)["software"][name] for name in now} if card.exists() else now


def curves(directory: Path, last_step: int) -> dict[str, list[list[float]]]:
    """Steps and values of what was logged over training, at some points of it."""
    rows = read_metrics(directory)
    found = {}
    for name, logged in CURVES.items():
        # After an interruption Lightning logs at one step more than were made.
        values = {min(int(row["step"]), last_step): row[logged] for row in rows if logged in row}
        if values:
            found[name] = thinned([[step, rounded(value)] for step, value in sorted(values.items())])
    return found


def rounded(value: float | None) -> Any:
    """What single precision has made of a share of so many images, put right."""
    return None if value is None else round(value, 6)


def thinned(points: list[list[float]]) -> list[list[float]]:
    """At most MOST_POINTS of them, evenly spread, with the first and the last."""
    if len(points) <= MOST_POINTS:
        return points
    last = len(points) - 1
    return [points[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]


def write_result(path: Path, result: Result) -> None:
    """Replace the file as a whole. A point of a curve is one line of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
    numbers = re.compile(r"\[[^\[\]{}\"]*\]")
    text = numbers.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text + "\n", "utf-8")
    partial.replace(path)


def read_result(path: Path) -> Result | None:
    """A result, or None if there is none."""
    return read_json(path) if path.exists() else None


def counts(result: Result, run: Run) -> bool:
    """Whether it is the result of just this run: the cell's own experiment, overrides and seed, and nothing else."""
    asked = (run.cell.experiment, list(run.cell.overrides), [], run.seed)
    return asked == tuple(result[key] for key in ("experiment", "overrides", "extra_overrides", "seed"))


def results_of(table: Table, output: Path = RESULTS) -> dict[str, list[Result]]:
    """What there is for each row of a table, by the name of its cell, in the order of its seeds."""
    found: dict[str, list[Result]] = {cell.name: [] for cell in table.rows}
    for run in (*table.baseline, *table.runs()):
        result = read_result(result_file(output, run))
        if result is not None and counts(result, run):
            found[run.cell.name].append(result)
    return found
