"""Result files of runs: settings, figures, and the machine and software that produced them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from lightning_gep.privacy.card.software import software
from lightning_gep.privacy.files import CARD_FILE, read_json, write_text
from lightning_gep.reporting.groups import thinned
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
"""The curves that are kept, and their names in the metrics."""

Result = dict[str, Any]


def result_file(output: Path, run: Run) -> Path:
    """Where the result of a run is kept."""
    return output / "runs" / f"{run.name}.json"


def make_result(run: Run, record: RunRecord, directory: Path, settings: Settings, extra: Sequence[str]) -> Result:
    """The result of a finished run; `extra` are overrides that do not belong to the cell."""
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
    """Versions and revision recorded when the run began; today's may differ."""
    card = directory / "checkpoints" / CARD_FILE
    now = software()
    return {name: read_json(card)["software"][name] for name in now} if card.exists() else now


def curves(directory: Path, last_step: int) -> dict[str, list[list[float]]]:
    """Steps and values of the logged curves, thinned."""
    rows = read_metrics(directory)
    found = {}
    for name, logged in CURVES.items():
        # After an interruption Lightning logs one step too many.
        values = {min(int(row["step"]), last_step): row[logged] for row in rows if logged in row}
        if values:
            points = [[step, rounded(value)] for step, value in sorted(values.items())]
            found[name] = thinned(points, MOST_POINTS)
    return found


def rounded(value: float | None) -> Any:
    """A fraction of the images without the rounding error of single precision."""
    return None if value is None else round(value, 6)


def write_result(path: Path, result: Result) -> None:
    """Replace the file atomically. Each point of a curve is one line."""
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
    numbers = re.compile(r"\[[^\[\]{}\"]*\]")
    write_text(path, numbers.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text) + "\n")


def read_result(path: Path) -> Result | None:
    """A result, or None if there is none."""
    return read_json(path) if path.exists() else None


def counts(result: Result, run: Run) -> bool:
    """Whether it is a result of exactly this run: the cell's experiment, overrides and seed, and nothing else."""
    asked = (run.cell.experiment, list(run.cell.overrides), [], run.seed)
    return asked == tuple(result[key] for key in ("experiment", "overrides", "extra_overrides", "seed"))


def results_of(table: Table, output: Path = RESULTS) -> dict[str, list[Result]]:
    """The results of each row of a table by cell name, in the order of the seeds."""
    found: dict[str, list[Result]] = {cell.name: [] for cell in table.rows}
    for run in (*table.baseline, *table.runs()):
        result = read_result(result_file(output, run))
        if result is not None and counts(result, run):
            found[run.cell.name].append(result)
    return found
