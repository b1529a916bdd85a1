"""The table of tables in recipes/README.md: which command trains what, and how much of it has been run."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from lightning_gep.report.text import NOTHING, duration
from recipes.running.cells import Table
from recipes.running.outcome import RESULTS, results_of
from recipes.running.page_table import markdown_table

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->"
HEAD = ["command", "experiments, in `conf/experiment`", "published, %", "ours", "runs", "time"]


def overview(text: str, tables: Sequence[Table], output: Path = RESULTS) -> str:
    """The README with its table as the results are now."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    rows = markdown_table(HEAD, [row(table, output) for table in tables])
    return "\n".join([before + BEGIN.rstrip(), *rows, END + after])


def row(table: Table, output: Path) -> list[str]:
    """One table's line."""
    found = [result for runs in results_of(table, output).values() for result in runs]
    return [
        f"`python -m recipes.{table.name} --data-directory DIR`",
        ", ".join(f"`{place}`" for place in experiments(table)) or "none yet",
        table.published,
        f"[{table.title}](../docs/results/README.md#{anchor(table.title)})",
        f"{len(found)} of {len(table.runs())}",
        duration(sum(result["seconds"] for result in found)) if found else NOTHING,
    ]


def experiments(table: Table) -> list[str]:
    """The folders of its experiments, or the files that are in none."""
    paths = [PurePosixPath(cell.experiment) for cell in table.cells]
    return list(dict.fromkeys(f"{path.parent}/" if len(path.parts) > 1 else path.name for path in paths))


def anchor(title: str) -> str:
    """What a heading is called in a link, as GitHub does it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
