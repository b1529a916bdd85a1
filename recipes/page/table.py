"""One table of results in Markdown, with published and our figures side by side."""

import statistics
import textwrap
from collections.abc import Callable

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.groups import spread
from lightning_gep.reporting.text import NOTHING, counted, duration, with_spread
from recipes.running.outcome import Result
from recipes.tables.types import Cell, Table
from recipes.writing import WIDTH, markdown_table

FAR_BELOW = 3.0
"""Points of accuracy that another seed or a shorter training cannot explain."""
OURS = {"test_accuracy": "ours, %", "validation_accuracy": "validation, %"}

Column = Callable[[Cell, list[Result]], str]


def section(table: Table, results: dict[str, list[Result]], heading: str = "") -> list[str]:
    """The section of a table, with the columns that have content; a sentence in the place of a table without runs."""
    if not any(results[cell.name] for cell in table.cells):
        runs = counted(sum(len(cell.seeds) for cell in table.cells), "run")
        return [f"{heading}{table.title}", "", *textwrap.wrap(f"{table.about} Not run yet: {runs}.", WIDTH)]
    found = [result for runs in results.values() for result in runs]
    warning = too_low(table, results)
    paper: dict[str, Column] = {
        "published, %": lambda cell, _: published(cell),
        "its true ε": lambda cell, _: NOTHING if cell.published_epsilon is None else f"{cell.published_epsilon:g}",
    }
    columns: dict[str, Column] = {
        **(paper if any(cell.published is not None for cell in table.rows) else {}),
        OURS[table.judged_by]: lambda _, runs: accuracy(runs, table.judged_by) or "not run",
        "runs": lambda cell, runs: f"{len(runs)} of {len(cell.seeds)}",
        "ε": lambda _, runs: rounded_up(max((float(run["epsilon"]) for run in runs), default=None)),
        "steps": lambda _, runs: span([run["steps"] for run in runs]),
        "time": lambda _, runs: duration(statistics.fmean(run["seconds"] for run in runs) if runs else None),
    }
    if any("nonprivate_projection_error" in result["curves"] for result in found):
        columns["projection error"] = lambda _, runs: errors(runs)
    lines = [f"{heading}{table.title}", "", *textwrap.wrap(f"{warning}{table.about}", WIDTH), ""]
    rows = [
        [f"{cell.panel}: {cell.line}", *(column(cell, results[cell.name]) for column in columns.values())]
        for cell in table.rows
    ]
    return [*lines, *markdown_table(["", *columns], rows)]


def too_low(table: Table, results: dict[str, list[Result]]) -> str:
    """Warnings first: rows without privacy that are far below the published figures, or missing."""
    cells = [run.cell for run in table.baseline]
    missing = [cell.panel for cell in cells if not results[cell.name] and any(results[c.name] for c in table.cells)]
    low = [
        f"{cell.panel} {accuracy(results[cell.name], 'test_accuracy')} % instead of {published(cell)} %"
        for cell in cells
        if any(100 * run["test_accuracy"] < (cell.published or 0) - FAR_BELOW for run in results[cell.name])
    ]
    warnings = [f"**Without privacy far below the published figure: {'; '.join(low)}.** "] if low else []
    warnings += [f"**The row without privacy is not run yet for {', '.join(missing)}.** "] if missing else []
    return "".join(warnings)


def published(cell: Cell) -> str:
    """The paper's figure."""
    if cell.published is None:
        return NOTHING
    return f"{cell.published:.1f}" + ("" if cell.published_spread is None else f" ± {cell.published_spread:.2f}")


def accuracy(runs: list[Result], which: str) -> str:
    """Mean and standard deviation in percent; empty without runs."""
    values = [100 * run[which] for run in runs if run[which] is not None]
    return with_spread(*spread(values), 2) if values else ""


def errors(runs: list[Result]) -> str:
    """The smallest and the largest projection error over training."""
    values = [value for run in runs for _, value in run["curves"].get("nonprivate_projection_error", ())]
    return f"{min(values):.3f} – {max(values):.3f}" if values else NOTHING


def span(values: list[int]) -> str:
    """One number if all are equal, else the smallest and the largest."""
    return " – ".join(str(value) for value in sorted({min(values), max(values)})) if values else NOTHING
