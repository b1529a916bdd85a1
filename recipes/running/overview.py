"""The tables in recipes/README.md: which command trains or measures what, what came out, and how long it took."""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from lightning_gep.privacy.files import read_json
from lightning_gep.reporting.text import NOTHING, duration
from recipes.running.cells import Cell, Table
from recipes.running.outcome import RESULTS, Result, results_of
from recipes.running.page_table import markdown_table, said

README = Path(__file__).resolve().parents[1] / "README.md"
PAGE = "../docs/results/README.md"
HEAD = ["command", "experiments, in `conf/experiment`", "published, %", "ours, %", "runs", "time"]
FIGURES_HEAD = ["command", "experiments, in their first epochs", "published", "ours", "time of all three"]


def overview(text: str, tables: Sequence[Table], figures: Mapping[str, tuple[str, str]], output: Path = RESULTS) -> str:
    """The README with its tables as the results are now."""
    text = _between("tables", text, markdown_table(HEAD, [row(table, output) for table in tables]))
    rows = [figure_row(name, *words, drawn(name, output)) for name, words in figures.items()]
    return _between("figures", text, markdown_table(FIGURES_HEAD, rows))


def _between(name: str, text: str, lines: list[str]) -> str:
    """The text with these lines between its two marks of that name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin.rstrip(), *lines, end + after])


def row(table: Table, output: Path) -> list[str]:
    """One table's line."""
    results = results_of(table, output)
    found = [result for runs in results.values() for result in runs]
    return [
        command(table.name),
        ", ".join(f"`{place}`" for place in experiments(table)),
        table.published,
        " ".join([*headline(table, results), f"[{table.title}]({PAGE}#{anchor(table.title)})"]),
        f"{len(found)} of {len(table.runs())}",
        duration(sum(result["seconds"] for result in found)) if found else NOTHING,
    ]


def command(name: str) -> str:
    """What a recipe is called with."""
    return f"`python -m recipes.{name} --data-directory DIR`"


def headline(table: Table, results: Mapping[str, list[Result]]) -> list[str]:
    """The figures of the table's most telling line, as far as there are any."""
    cells = [cell for cell in table.cells if cell.line == table.headline and results[cell.name]]
    figures = [f"{cell.panel}{_at_k(cell)}: {said(results[cell.name], table)}" for cell in cells]
    return [f"{table.headline}: {'; '.join(figures)}."] if figures else []


def _at_k(cell: Cell) -> str:
    return "" if cell.k is None else f", k = {cell.k}"


def drawn(name: str, output: Path) -> dict[Path, dict[str, Any]]:
    """The pictures that there are of a figure, and what was measured for them."""
    pictures = sorted((output / "figures").glob(f"{name}_*.svg"))
    return {path: read_json(path.with_name(f"{path.stem.replace(name, 'measured')}.json")) for path in pictures}


def ours(name: str, measured: Iterable[dict[str, Any]]) -> list[str]:
    """What came out of a figure, in a phrase for each data set."""
    from recipes.measured.drawing import data_title  # matplotlib comes with the dev extra, and takes a second

    summary = import_module(f"recipes.{name}").summary
    return [f"{data_title(figures)} {summary(figures)}." for figures in measured]


def figure_row(name: str, title: str, published: str, measured: Mapping[Path, dict[str, Any]]) -> list[str]:
    """The line of a figure that is measured on gradients."""
    times = [duration(figures["training"]["seconds"] + _measuring(figures)) for figures in measured.values()]
    return [
        command(name),
        ", ".join(f"`{figures['settings']['experiment']}`" for figures in measured.values()) or NOTHING,
        published,
        " ".join([*ours(name, measured.values()), f"[{title}]({PAGE}#{anchor(title)})"]),
        ", ".join(times) or NOTHING,
    ]


def _measuring(figures: dict[str, Any]) -> float:
    """Seconds of all bases that were measured."""
    return float(sum(basis["seconds"] for step in figures["steps"].values() for basis in step["bases"].values()))


def experiments(table: Table) -> list[str]:
    """The folders of its experiments, or the files that are in none."""
    paths = [PurePosixPath(cell.experiment) for cell in table.cells]
    return list(dict.fromkeys(f"{path.parent}/" if len(path.parts) > 1 else path.name for path in paths))


def anchor(title: str) -> str:
    """What a heading is called in a link, as GitHub does it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
