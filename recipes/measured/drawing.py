"""Panels of line plots."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from recipes.data.image_sets import PRIVATE
from recipes.writing import save_svg

COLOURS = ("#1d3557", "#c1666b", "#6b9080", "#e4b363", "#7aa5d2", "#9a6fb0", "#8a8a8a", "#d1495b")
SOURCES = {
    "imagenet": "ImageNet, random labels",
    "cifar100": "CIFAR-100, random labels",
    "test_samples": "test images, random labels",
    "test_samples_true_labels": "test images, true labels",
    "random": "random basis",
}


def panels(rows: int, columns: int) -> tuple[Figure, Any]:
    """A figure with a grid of axes, rows × columns."""
    figure = Figure(figsize=(3.2 * columns, 2.9 * rows + 0.8), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharey="row")


def line(axes: Axes, points: Mapping[int, float], label: str, colour: int, style: str = "-") -> None:
    """A line with a marker at each point."""
    colour_name = COLOURS[colour % len(COLOURS)]
    axes.plot(list(points), list(points.values()), style, marker="o", markersize=3.5, color=colour_name, label=label)


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Title, axis labels, a logarithmic scale with plain numbers, and a grid."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.label_outer()
    axes.tick_params(which="both", labelsize=7)
    axes.grid(alpha=0.25)


def save(figure: Figure, file: Path, named: Axes, columns: int) -> None:
    """Write the picture, with one legend below all panels."""
    figure.legend(*named.get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_svg(figure, file)


def data_title(figures: Mapping[str, Any]) -> str:
    """The data set's name."""
    return PRIVATE[figures["settings"]["experiment"].split("/")[1].split("_")[0]].title


def steps_of(figures: Mapping[str, Any]) -> dict[int, Any]:
    """The measurements in order of the steps."""
    return {int(step): figures["steps"][step] for step in sorted(figures["steps"], key=int)}


def short_name(group: str) -> str:
    """A group's name without the network's prefix."""
    return group.removeprefix("network.")
