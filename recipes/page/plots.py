"""The pictures of the results page. The same results give the same bytes."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lightning_gep.reporting.groups import grouped
from recipes.page.summary import CHALLENGERS, Compared, Difference
from recipes.running.outcome import Result
from recipes.tables.types import Cell, Table
from recipes.writing import save_svg

COLOURS = ["#1d3557", "#c1666b", "#6b9080", "#e4b363", "#9a6fb0", "#7aa5d2", "#8a8a8a", "#2a9d8f", "#d98c5f", "#5f7a3a"]
BY_MECHANISM = {"spectral": "#e4b363", "GEP": "#1d3557", "GP": "#c1666b", "no privacy": "#6b9080"}
ACROSS = 3
LINE_OF_LABELS = 0.17
"""Inches."""
Results = dict[str, list[Result]]


def picture_name(table: Table, results: Results) -> str:
    """The file of a table's picture; empty without results of its own, since a baseline alone is no comparison."""
    return f"{table.name}.svg" if any(results.get(cell.name) for cell in table.cells) else ""


def draw(table: Table, results: Results, output: Path) -> None:
    """The picture of a table: the followed figure over the epochs of every run, one panel each.

    Published figures are dotted lines. The same label has the same colour in every panel.
    """
    name, panels = picture_name(table, results), _panels(table, results)
    if not name:
        return
    labels = list(dict.fromkeys(cell.line for cell in table.cells if results[cell.name]))
    colours = dict(zip(labels, cycle(COLOURS), strict=False))
    columns = min(ACROSS, len(panels))
    rows, columns_of_labels = math.ceil(len(panels) / columns), max(1, columns - 1)
    height = 3.2 * rows + LINE_OF_LABELS * math.ceil(len(labels) / columns_of_labels)
    figure = Figure(figsize=(max(4.2 * columns, 6.4), height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, (title, cells) in zip(axes, panels.items(), strict=False):
        for cell in cells:
            _draw_runs(axis, table.follows, cell, results[cell.name], colours[cell.line])
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("epochs")
        axis.set_ylabel(f"{table.follows.replace('_', ' ')}, %")
        axis.grid(alpha=0.25)
    handles = [Line2D([], [], color=colours[label], linewidth=1.2, label=label) for label in labels]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns_of_labels, fontsize=7, frameon=False)
    save_svg(figure, output / name)


def _panels(table: Table, results: Results) -> dict[str, list[Cell]]:
    """The cells with results, by panel."""
    return grouped((cell for cell in table.cells if results[cell.name]), lambda cell: cell.panel)


def _draw_runs(axis: Any, follows: str, cell: Cell, runs: list[Result], colour: str) -> None:
    for result in runs:
        points = result["curves"].get(follows, [])
        epochs = [step * result["sample_rate"] for step, _ in points]
        axis.plot(epochs, [100 * value for _, value in points], color=colour, linewidth=1.2)
    if cell.published is not None:
        axis.axhline(cell.published, color=colour, linestyle=":", linewidth=1)


def draw_summary(rows: Sequence[Compared], outside: Mapping[str, float], file: Path) -> None:
    """What mechanisms gain over GP, by setting; and what GEP gains where less or more lies outside its subspace."""
    if not rows:
        return
    figure = Figure(figsize=(11, 1.0 + 0.32 * len(rows)), layout="constrained")
    by_setting, by_share = figure.subplots(1, 2, width_ratios=(3, 2))
    by_setting.axvline(0, color="#8a8a8a", linewidth=1)
    for name, shift in zip(CHALLENGERS, (-0.12, 0.12), strict=True):
        found = [(place + shift, ahead) for place, row in enumerate(rows) if (ahead := row.ahead(name))]
        for place, ahead in found:
            _draw_difference(by_setting, name, "x", ahead, place)
        by_setting.plot([], [], "o", color=BY_MECHANISM[name], label=name)
    by_setting.set_yticks(range(len(rows)), [each.label for each in rows], fontsize=8)
    by_setting.set_ylim(len(rows) - 0.5, -0.5)
    by_setting.set_xlabel("minus GP, points of test accuracy (bar: two standard errors; ring: one run)", fontsize=8)
    by_setting.legend(fontsize=8, frameon=False)
    by_share.axhline(0, color="#8a8a8a", linewidth=1)
    for row in rows:
        ahead = row.ahead("GEP")
        if ahead and row.label in outside:
            _draw_difference(by_share, "GEP", "y", ahead, outside[row.label])
    by_share.set_xlim(0, 1)
    by_share.set_xlabel("share of a gradient outside the subspace (‖residual‖ / ‖gradient‖)", fontsize=8)
    by_share.set_ylabel("GEP minus GP, points", fontsize=8)
    for axis in (by_setting, by_share):
        axis.tick_params(labelsize=8)
    save_svg(figure, file)


def _draw_difference(axis: Any, name: str, along: str, ahead: Difference, place: float) -> None:
    """A point with its error along one axis; a ring for a single run."""
    error = ahead.standard_error
    style = {"markerfacecolor": "white"} if error is None else {f"{along}err": 2 * error, "capsize": 3}
    x, y = (ahead.points, place) if along == "x" else (place, ahead.points)
    axis.errorbar([x], [y], fmt="o", color=BY_MECHANISM[name], markersize=5, **style)
