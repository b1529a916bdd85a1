"""The tables in recipes/README.md: what each trains or measures, what came out, and how long it took."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from lightning_gep.reporting.text import NOTHING, duration
from recipes.measured.figures import FIGURES, data_title, measured_files
from recipes.page.table import said
from recipes.running.outcome import RESULTS, results_of
from recipes.tables.types import Cell, Table
from recipes.writing import markdown_table

README = Path(__file__).resolve().parents[1] / "README.md"
PAGE = "../docs/results/README.md"
HEAD = ["`--only`", "experiments, in `conf/experiment`", "published, %", "ours, %", "runs", "time"]
FIGURES_HEAD = ["figure", "experiments, in their first epochs", "published", "ours", "time of all three"]


def overview(text: str, tables: Sequence[Table], output: Path = RESULTS) -> str:
    """The README with its tables brought up to date."""
    text = between("tables", text, markdown_table(HEAD, [_row(table, output) for table in tables]))
    return between("figures", text, markdown_table(FIGURES_HEAD, [_figure_row(figure, output) for figure in FIGURES]))


def between(name: str, text: str, lines: list[str]) -> str:
    """The text with these lines between its two marks of that name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin.rstrip(), *lines, end + after])


def _row(table: Table, output: Path) -> list[str]:
    results = results_of(table, output)
    found = [result for runs in results.values() for result in runs]
    paths = [PurePosixPath(cell.experiment) for cell in table.cells]
    experiments = dict.fromkeys(f"{path.parent}/" if len(path.parts) > 1 else path.name for path in paths)
    cells = [cell for cell in table.cells if cell.line == table.headline and results[cell.name]]
    figures = "; ".join(f"{cell.panel}{_at_k(cell)}: {said(results[cell.name], table)}" for cell in cells)
    return [
        f"`{table.name}`",
        ", ".join(f"`{place}`" for place in experiments),
        table.published,
        (f"{table.headline}: {figures}. " if figures else "") + _link(table.title),
        f"{len(found)} of {len(table.runs())}",
        duration(sum(result["seconds"] for result in found)) if found else NOTHING,
    ]


def _at_k(cell: Cell) -> str:
    return "" if cell.k is None else f", k = {cell.k}"


def _figure_row(figure: Any, output: Path) -> list[str]:
    measured = measured_files(figure, output)
    times = [
        duration(
            each["training"]["seconds"]
            + sum(basis["seconds"] for step in each["steps"].values() for basis in step["bases"].values())
        )
        for each in measured.values()
    ]
    ours = [f"{data_title(each)} {figure.summary(each)}." for each in measured.values()]
    return [
        f"`{figure.NAME}`",
        ", ".join(f"`{each['settings']['experiment']}`" for each in measured.values()) or NOTHING,
        figure.PUBLISHED,
        " ".join([*ours, _link(figure.TITLE)]),
        ", ".join(times) or NOTHING,
    ]


def _link(title: str) -> str:
    """A link to a heading of the results page, as GitHub names it."""
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"[{title}]({PAGE}#{anchor})"
