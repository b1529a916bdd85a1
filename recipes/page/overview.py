"""The tables in recipes/README.md: what each trains or measures, how much of it was run, and how long it took."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from lightning_gep.reporting.text import NOTHING, duration
from recipes.measured.figures import FIGURES, measured_files
from recipes.running.outcome import RESULTS, results_of
from recipes.tables.types import Table
from recipes.writing import markdown_table

README = Path(__file__).resolve().parents[1] / "README.md"
PAGE = "../docs/results/README.md"
HEAD = ["`--only`", "experiments, in `conf/experiment`", "results", "runs", "time"]
FIGURES_HEAD = ["figure", "experiments, in their first epochs", "results", "time of all three"]


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
    found = [result for cell in table.cells for result in results[cell.name]]
    paths = [PurePosixPath(cell.experiment) for cell in table.cells]
    experiments = dict.fromkeys(f"{path.parent}/" if len(path.parts) > 1 else path.name for path in paths)
    return [
        f"`{table.name}`",
        ", ".join(f"`{place}`" for place in experiments),
        _link(table.title),
        f"{len(found)} of {len(table.runs())}",
        duration(sum(result["seconds"] for result in found)) if found else NOTHING,
    ]


def _figure_row(figure: Any, output: Path) -> list[str]:
    measured = measured_files(figure, output).values()
    times = [
        each["training"]["seconds"]
        + sum(basis["seconds"] for step in each["steps"].values() for basis in step["bases"].values())
        for each in measured
    ]
    return [
        f"`{figure.NAME}`",
        ", ".join(f"`{each['settings']['experiment']}`" for each in measured) or NOTHING,
        _link(figure.TITLE),
        ", ".join(map(duration, times)) or NOTHING,
    ]


def _link(title: str) -> str:
    """A link to a heading of the results page, as GitHub names it."""
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"[{title}]({PAGE}#{anchor})"
