"""The README's picture and table of test accuracies, from the committed results."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lightning_gep.reporting.text import NOTHING
from recipes.page.overview import between
from recipes.page.plots import BY_MECHANISM
from recipes.page.table import accuracy
from recipes.running.outcome import RESULTS, results_of
from recipes.tables import COMPARISONS, LINEAR_PROBE, MNIST_EPSILON2, MNIST_LARGER_EPSILON
from recipes.tables.shaped import CIFAR10_CNN, NOT_PRIVATE, compared_cells
from recipes.tables.types import Comparison, Table
from recipes.writing import markdown_table, save_svg

FRONT_PAGE = Path(__file__).resolve().parents[2] / "README.md"
PICTURE = "accuracy_against_epsilon.svg"

Points = dict[float, tuple[Table, str]]
"""A table and its cell for every ε."""


@dataclass(frozen=True)
class Panel:
    """One network and data set: a curve for each mechanism, a line without privacy, and its published value (%)."""

    title: str
    curves: dict[str, Points]
    without: tuple[Table, str]
    published: float | None = None


def _mnist(first: str, mechanism: str) -> Points:
    larger: Points = {epsilon: (MNIST_LARGER_EPSILON, f"{mechanism}_eps{epsilon:g}") for epsilon in (5.0, 8.0)}
    return {2.0: (MNIST_EPSILON2, first), **larger}


def _small_network(mechanism: str) -> Points:
    cells = {epsilon: compared_cells(epsilon) for epsilon in (2.0, 8.0)}
    return {epsilon: (CIFAR10_CNN, names[mechanism]) for epsilon, names in cells.items() if mechanism in names}


def _features(name: str) -> Points:
    names = {0.1: "0_1", 0.5: "0_5", 1.0: "1", 2.0: "2"}
    return {epsilon: (LINEAR_PROBE, name.format(text)) for epsilon, text in names.items()}


PANELS = (
    Panel(
        "CIFAR-10, small CNN",
        {"spectral": _small_network("spectral"), "GEP": _small_network("GEP"), "DP-SGD": _small_network("GP")},
        (CIFAR10_CNN, NOT_PRIVATE.name),
    ),
    Panel(
        "MNIST, CNN",
        {
            "spectral": {2.0: (MNIST_EPSILON2, "mnist_best_spectral")},
            "GEP": _mnist("mnist_best", "gep"),
            "DP-SGD": _mnist("mnist_best_gp", "gp"),
        },
        (MNIST_EPSILON2, "mnist"),
        published=99.1,
    ),
    Panel(
        "features of CIFAR-10, linear",
        {
            "spectral": _features("spectral_eps{}"),
            "GEP": _features("gep_eps{}_half"),
            "DP-SGD": _features("gp_eps{}"),
        },
        (LINEAR_PROBE, "linear_probe"),
    ),
)


HEAD = ["test accuracy, %", "no privacy", "DP-SGD", "GEP", "spectral", "runs"]
ROWS = (
    "CIFAR-10, small network, ε = 2",
    "CIFAR-10, ResNet20, ε = 2, the paper's settings",
    "MNIST, ε = 2, our settings",
    "features of CIFAR-10, ε = 2",
)
"""The comparisons that the README shows."""


def front_page(text: str, output: Path = RESULTS) -> str:
    """The README with its table brought up to date."""
    rows = {each.label: each for each in COMPARISONS}
    return between("accuracies", text, markdown_table(HEAD, [_row(rows[label], output) for label in ROWS]))


def _row(comparison: Comparison, output: Path) -> list[str]:
    found = results_of(comparison.table, output)
    cells = [comparison.cells.get(name, "") for name in ("GP", "GEP", "spectral")]
    runs = [found.get(cell, []) for cell in (comparison.without_privacy, *cells)]
    figures = [accuracy(each, "test_accuracy") or NOTHING for each in runs]
    return [comparison.label, *figures, ", ".join(str(len(each)) for each in runs[1:])]


def draw_accuracy(output: Path) -> None:
    """Write the picture beside the results. Cells without a result are left out."""
    figure = Figure(figsize=(9.6, 3.0), layout="constrained")
    for axis, panel in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for name, points in panel.curves.items():
            _draw_curve(axis, name, points, output)
        _draw_line(axis, panel, output)
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel("ε")
        axis.set_xlim(0, 1.1 * max(epsilon for points in panel.curves.values() for epsilon in points))
        axis.grid(alpha=0.25)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7, frameon=False, loc="lower right")
    figure.axes[0].set_ylabel("test accuracy, %")
    save_svg(figure, output / PICTURE)


def _accuracies(place: tuple[Table, str], output: Path) -> list[float]:
    table, cell = place
    return [100 * result["test_accuracy"] for result in results_of(table, output)[cell]]


def _draw_curve(axis: Any, name: str, points: Points, output: Path) -> None:
    """Means over seeds, with a bar of one standard deviation; a ring where there is a single run."""
    found = {epsilon: values for epsilon, place in points.items() if (values := _accuracies(place, output))}
    means = [statistics.fmean(values) for values in found.values()]
    axis.plot(list(found), means, color=BY_MECHANISM[name], linewidth=1.2, label=name if found else None)
    for (epsilon, values), mean in zip(found.items(), means, strict=True):
        style = {"yerr": statistics.stdev(values), "capsize": 3} if len(values) > 1 else {"markerfacecolor": "white"}
        axis.errorbar([epsilon], [mean], fmt="o", color=BY_MECHANISM[name], **style)


def _draw_line(axis: Any, panel: Panel, output: Path) -> None:
    measured = _accuracies(panel.without, output)
    height = statistics.fmean(measured) if measured else panel.published
    if height is not None:
        label = "no privacy" if measured else "no privacy (published)"
        axis.axhline(height, color=BY_MECHANISM["no privacy"], linestyle="--" if measured else ":", label=label)
