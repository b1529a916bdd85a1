"""Markdown tables and SVG files; the same content always gives the same bytes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

WIDTH = 118
SVG = {
    "svg.fonttype": "none",  # text stays text: smaller, and it can be searched
    "svg.hashsalt": "recipes",  # without it the ids are random
}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]


def between(name: str, text: str, lines: list[str]) -> str:
    """The text with these lines between its two marks of that name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin.rstrip(), *lines, end + after])


def save_svg(figure: Figure, file: Path) -> None:
    """Write a figure, without the date."""
    with matplotlib.rc_context(SVG):
        figure.savefig(file, metadata={"Date": None})
