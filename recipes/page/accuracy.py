"""The README's picture and table of test accuracies, from the committed results."""

import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lightning_gep.reporting.groups import grouped
from recipes.page.plots import BY_MECHANISM
from recipes.page.summary import Compared
from recipes.running.outcome import RESULTS
from recipes.tables import COMPARISONS
from recipes.writing import between, markdown_table, save_svg

FRONT_PAGE = Path(__file__).resolve().parents[2] / "README.md"
PICTURE = "accuracy_against_epsilon.svg"
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
    comparisons = {each.label: each for each in COMPARISONS}
    rows = [Compared.of(comparisons[label], output) for label in ROWS]
    return between("accuracies", text, markdown_table(HEAD, [[row.label, *row.accuracies, row.runs] for row in rows]))


def draw_accuracy(output: Path) -> None:
    """Write the picture beside the results, a curve for each mechanism. Cells without a result are left out."""
    panels = grouped([each for each in COMPARISONS if each.panel], lambda each: each.panel)
    figure = Figure(figsize=(9.6, 3.0), layout="constrained")
    for axis, (title, comparisons) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        compared = {each.epsilon: Compared.of(each, output) for each in comparisons}
        for name in ("spectral", "GEP", "GP"):
            _draw_curve(axis, name, {epsilon: each.percentages(name) for epsilon, each in compared.items()})
        without = next(iter(compared.values())).percentages("no privacy")
        if without:
            height = statistics.fmean(without)
            axis.axhline(height, color=BY_MECHANISM["no privacy"], linestyle="--", label="no privacy")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("ε")
        axis.set_xlim(0, 1.1 * max(compared))
        axis.grid(alpha=0.25)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7, frameon=False, loc="lower right")
    figure.axes[0].set_ylabel("test accuracy, %")
    save_svg(figure, output / PICTURE)


def _draw_curve(axis: Any, name: str, points: dict[float, list[float]]) -> None:
    """Means over seeds, with a bar of one standard deviation; a ring where there is a single run."""
    found = {epsilon: values for epsilon, values in points.items() if values}
    means = [statistics.fmean(values) for values in found.values()]
    label = "DP-SGD" if name == "GP" else name
    axis.plot(list(found), means, color=BY_MECHANISM[name], linewidth=1.2, label=label if found else None)
    for (epsilon, values), mean in zip(found.items(), means, strict=True):
        style = {"yerr": statistics.stdev(values), "capsize": 3} if len(values) > 1 else {"markerfacecolor": "white"}
        axis.errorbar([epsilon], [mean], fmt="o", color=BY_MECHANISM[name], **style)
