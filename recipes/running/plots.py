"""The results as pictures."""

import math
import statistics
import textwrap
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from recipes.running.cells import Cell, Table
from recipes.running.outcome import Result, results_of
from recipes.running.page import pictures
from recipes.running.svg import save_svg

COLOURS = ["#1d3557", "#c1666b", "#6b9080", "#e4b363", "#9a6fb0", "#7aa5d2", "#8a8a8a", "#2a9d8f", "#d98c5f", "#5f7a3a"]
ACROSS = 3
LONGEST_LABEL, LABEL_WIDTH = 30, 48
"""Characters: longer labels do not fit a legend in the panel; and where they are wrapped instead."""


def draw_all(tables: Sequence[Table], output: Path) -> None:
    """The pictures of every table that has results."""
    for table in tables:
        results = results_of(table, output)
        drawn = dict(zip(pictures(table, results), (draw_curves, draw_over_k), strict=False))
        for name, draw in drawn.items():
            draw(table, results, output / name)


def draw_curves(table: Table, results: dict[str, list[Result]], file: Path) -> None:
    """What the table follows over the epochs of every run, panel by panel; published figures are dotted.

    Where labels are long, they stand beside where the runs end, in place of a legend.
    """
    panels = _panels(table, results)
    in_words = any(len(cell.label) > LONGEST_LABEL for cell in table.cells)
    figure, axes = _canvas_in_words(panels) if in_words else _canvas(len(panels))
    colours = _colours([cell.label for cell in table.cells])
    for number, (title, cells) in enumerate(panels.items()):
        axis = axes[2 * number if in_words else number]
        for cell in cells:
            _draw_runs(axis, table.follows, cell, results[cell.name], colours[cell.label])
        _finish(axis, title, "epochs", table.follows, legend=not in_words)
        if in_words:
            _draw_ends(axes[2 * number + 1], table, cells, results, colours)
    _save(figure, file)


def _draw_runs(axis: Any, follows: str, cell: Cell, runs: list[Result], colour: str) -> None:
    for number, result in enumerate(runs):
        points = result["curves"].get(follows, [])
        epochs = [step * result["sample_rate"] for step, _ in points]
        label = cell.label if number == 0 else None
        axis.plot(epochs, [100 * value for _, value in points], color=colour, linewidth=1.2, label=label)
    if cell.published is not None:
        axis.axhline(cell.published, color=colour, linestyle=":", linewidth=1)


def _draw_ends(
    axis: Any, table: Table, cells: list[Cell], results: dict[str, list[Result]], colours: dict[str, str]
) -> None:
    """A row for each cell: a dot for every run's accuracy at the end, a bar for their mean."""
    for row, cell in enumerate(cells):
        ends = [100 * result[table.judged_by] for result in results[cell.name]]
        axis.plot(ends, [row] * len(ends), "o", color=colours[cell.label], markersize=4)
        axis.plot([statistics.fmean(ends)], [row], "|", color=colours[cell.label], markersize=14)
    axis.set_yticks(range(len(cells)), [textwrap.fill(cell.label, LABEL_WIDTH) for cell in cells], fontsize=7)
    axis.set_ylim(len(cells) - 0.5, -0.5)
    _finish(axis, "at the end", in_percent(table.judged_by), "", legend=False)


def draw_over_k(table: Table, results: dict[str, list[Result]], file: Path) -> None:
    """Mean test accuracy at the end against k, panel by panel, with the range over seeds."""
    panels = _panels(table, results)
    figure, axes = _canvas(len(panels))
    colours = _colours([cell.line for cell in table.cells])
    for axis, (title, cells) in zip(axes, panels.items(), strict=True):
        for line in dict.fromkeys(cell.line for cell in cells):
            found = [
                (cell.k, [100 * result[table.judged_by] for result in results[cell.name]])
                for cell in cells
                if cell.line == line and cell.k is not None
            ]
            middle = [statistics.fmean(values) for _, values in found]
            below = [value - min(values) for value, (_, values) in zip(middle, found, strict=True)]
            above = [max(values) - value for value, (_, values) in zip(middle, found, strict=True)]
            ks = [k for k, _ in found]
            axis.errorbar(ks, middle, [below, above], color=colours[line], marker="o", capsize=2, label=line)
        axis.set_xticks(sorted({cell.k for cell in cells if cell.k is not None}))
        _finish(axis, title, "basis vectors k", table.judged_by)
    _save(figure, file)


def _panels(table: Table, results: dict[str, list[Result]]) -> dict[str, list[Cell]]:
    """The cells that have results, by panel."""
    panels: dict[str, list[Cell]] = {}
    for cell in table.cells:
        if results[cell.name]:
            panels.setdefault(cell.panel, []).append(cell)
    return panels


def _colours(names: list[str]) -> dict[str, str]:
    """The same name has the same colour in every panel."""
    return dict(zip(dict.fromkeys(names), cycle(COLOURS), strict=False))


def _canvas(panels: int) -> tuple[Figure, list[Any]]:
    columns = min(ACROSS, panels)
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[panels:]:
        axis.remove()
    return figure, axes[:panels]


def _canvas_in_words(panels: dict[str, list[Cell]]) -> tuple[Figure, list[Any]]:
    """For each panel one place for curves and one for where they end, as high as their labels need."""
    rows = max(len(cells) for cells in panels.values())
    figure = Figure(figsize=(9.6, max(3.2, 0.42 * rows + 0.8) * len(panels)))
    return figure, list(figure.subplots(len(panels), 2, squeeze=False).flat)


def _finish(axis: Any, title: str, over: str, shown: str, *, legend: bool = True) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(over)
    axis.set_ylabel(in_percent(shown) if shown else "")
    axis.grid(alpha=0.25)
    if legend:
        axis.legend(fontsize=7, frameon=False)


def in_percent(name: str) -> str:
    """What an axis is called."""
    return f"{name.replace('_', ' ')}, %"


def _save(figure: Figure, file: Path) -> None:
    figure.tight_layout()
    save_svg(figure, file)
