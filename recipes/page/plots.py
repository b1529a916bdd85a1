"""The pictures of the results page. The same results give the same bytes."""

import math
import statistics
import textwrap
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from recipes.page.summary import CHALLENGERS, Compared
from recipes.running.outcome import Result
from recipes.tables.types import Cell, Table
from recipes.writing import save_svg

COLOURS = ["#1d3557", "#c1666b", "#6b9080", "#e4b363", "#9a6fb0", "#7aa5d2", "#8a8a8a", "#2a9d8f", "#d98c5f", "#5f7a3a"]
BY_MECHANISM = {"spectral": "#e4b363", "GEP": "#1d3557", "DP-SGD": "#c1666b", "no privacy": "#6b9080"}
ACROSS = 3
LONGEST_LABEL, LABEL_WIDTH = 30, 48
"""Characters: longer labels do not fit in a legend; the width they are wrapped to instead."""
Results = dict[str, list[Result]]


def picture_names(table: Table, results: Results) -> list[str]:
    """The files of a table's pictures: none without results of its own, since a baseline alone is no comparison."""
    if not any(results.get(cell.name) for cell in table.cells):
        return []
    against_k = [f"{table.name}_over_k.svg"] if any(cell.k is not None for cell in table.cells) else []
    return [f"{table.name}.svg", *against_k]


def draw(table: Table, results: Results, output: Path) -> None:
    """The pictures of a table."""
    for name, picture in zip(picture_names(table, results), (draw_curves, draw_over_k), strict=False):
        figure = picture(table, results)
        figure.tight_layout()
        save_svg(figure, output / name)


def draw_curves(table: Table, results: Results) -> Figure:
    """The followed figure over the epochs of every run, one panel each; published figures are dotted lines.

    Long labels stand beside a plot of the final accuracies instead of in a legend.
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
    return figure


def _draw_runs(axis: Any, follows: str, cell: Cell, runs: list[Result], colour: str) -> None:
    for number, result in enumerate(runs):
        points = result["curves"].get(follows, [])
        epochs = [step * result["sample_rate"] for step, _ in points]
        label = cell.label if number == 0 else None
        axis.plot(epochs, [100 * value for _, value in points], color=colour, linewidth=1.2, label=label)
    if cell.published is not None:
        axis.axhline(cell.published, color=colour, linestyle=":", linewidth=1)


def _draw_ends(axis: Any, table: Table, cells: list[Cell], results: Results, colours: dict[str, str]) -> None:
    """A row for each cell: a dot for the final accuracy of every run, a bar for their mean."""
    for row, cell in enumerate(cells):
        ends = [100 * result[table.judged_by] for result in results[cell.name]]
        axis.plot(ends, [row] * len(ends), "o", color=colours[cell.label], markersize=4)
        axis.plot([statistics.fmean(ends)], [row], "|", color=colours[cell.label], markersize=14)
    axis.set_yticks(range(len(cells)), [textwrap.fill(cell.label, LABEL_WIDTH) for cell in cells], fontsize=7)
    axis.set_ylim(len(cells) - 0.5, -0.5)
    _finish(axis, "at the end", _in_percent(table.judged_by), "", legend=False)


def draw_over_k(table: Table, results: Results) -> Figure:
    """Mean final accuracy against k, panel by panel, with the range over seeds."""
    panels = _panels(table, results)
    figure, axes = _canvas(len(panels))
    colours = _colours([cell.line for cell in table.cells])
    for axis, (title, cells) in zip(axes, panels.items(), strict=True):
        for line in dict.fromkeys(cell.line for cell in cells):
            found = {
                cell.k: [100 * result[table.judged_by] for result in results[cell.name]]
                for cell in cells
                if cell.line == line and cell.k is not None
            }
            middle = [statistics.fmean(values) for values in found.values()]
            below = [mean - min(values) for mean, values in zip(middle, found.values(), strict=True)]
            above = [max(values) - mean for mean, values in zip(middle, found.values(), strict=True)]
            axis.errorbar(list(found), middle, [below, above], color=colours[line], marker="o", capsize=2, label=line)
        axis.set_xticks(sorted({cell.k for cell in cells if cell.k is not None}))
        _finish(axis, title, "basis vectors k", table.judged_by)
    return figure


def draw_summary(rows: Sequence[Compared], file: Path) -> None:
    """A row for each setting: the differences, with bars of two standard errors where there are several runs."""
    if not rows:
        return
    figure = Figure(figsize=(7.5, 0.8 + 0.32 * len(rows)), layout="constrained")
    axis = figure.subplots()
    axis.axvline(0, color="#8a8a8a", linewidth=1)
    for name, shift in zip(CHALLENGERS, (-0.12, 0.12), strict=True):
        colour = BY_MECHANISM[name]
        found = [(place + shift, ahead) for place, row in enumerate(rows) if (ahead := row.ahead(name))]
        for place, ahead in found:
            error = ahead.standard_error
            style = {"markerfacecolor": "white"} if error is None else {"xerr": 2 * error, "capsize": 3}
            axis.errorbar([ahead.points], [place], fmt="o", color=colour, markersize=5, **style)
        axis.plot([], [], "o", color=colour, label=name)
    axis.set_yticks(range(len(rows)), [each.label for each in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlabel("minus GP, points of test accuracy (bar: two standard errors; ring: one run)", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.legend(fontsize=8, frameon=False)
    save_svg(figure, file)


def _panels(table: Table, results: Results) -> dict[str, list[Cell]]:
    """The cells with results, by panel."""
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
    """Two plots for each panel, curves and final accuracies, as high as the labels need."""
    rows = max(len(cells) for cells in panels.values())
    figure = Figure(figsize=(9.6, max(3.2, 0.42 * rows + 0.8) * len(panels)))
    return figure, list(figure.subplots(len(panels), 2, squeeze=False).flat)


def _finish(axis: Any, title: str, over: str, shown: str, *, legend: bool = True) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(over)
    axis.set_ylabel(_in_percent(shown) if shown else "")
    axis.grid(alpha=0.25)
    if legend:
        axis.legend(fontsize=7, frameon=False)


def _in_percent(name: str) -> str:
    return f"{name.replace('_', ' ')}, %"
