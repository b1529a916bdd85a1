"""The figures as pictures."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.tables import NAMES

matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: smaller, and it can be searched
matplotlib.rcParams["svg.hashsalt"] = "benchmarks"  # the same figures give the same file
COLOURS = {
    "gradients": "#c9c9c9",
    "gradients_each": "#b5c7d9",
    "plain": "#8a8a8a",
    "opacus_hooks": "#c1666b",
    "opacus_ghost": "#e4b363",
    "gp": "#7aa5d2",
    "bgep": "#6b9080",
    "gep": "#1d3557",
    "gep_auto": "#457b9d",
    "gep_tree": "#2a9d8f",
    "gep_cold": "#9a6fb0",
    "paper": "#d1495b",
}
TITLES = {
    "n": "records n",
    "m": "anchors m",
    "k": "basis vectors k",
    "p": "parameters p",
    "groups": "groups",
    "microbatch": "microbatch",
}


def plain_name(contender: str) -> str:
    """A contender's name without Markdown."""
    return NAMES[contender].replace("*", "")


def draw_settings(results: dict[str, Any], file: Path) -> None:
    """Bars of seconds and of memory, a row of pictures for every setting."""
    settings = results["settings"]
    figure = Figure(figsize=(11, 2.9 * len(settings)))
    axes = figure.subplots(len(settings), 2, squeeze=False)
    for (name, setting), (left, right) in zip(settings.items(), axes, strict=True):
        table = setting["contenders"]
        names = [plain_name(contender) for contender in table]
        for axis, key, scale in ((left, "seconds", 1), (right, "peak_mb", 1000)):
            middle = [figures[key]["median"] / scale for figures in table.values()]
            spread = [
                [value - figures[key]["min"] / scale for value, figures in zip(middle, table.values(), strict=True)],
                [figures[key]["max"] / scale - value for value, figures in zip(middle, table.values(), strict=True)],
            ]
            axis.barh(names, middle, xerr=spread, color=[COLOURS[c] for c in table], error_kw={"linewidth": 0.8})
            axis.invert_yaxis()
        left.axvline(setting["limit_seconds"], color="black", linestyle=":", linewidth=1)
        left.set_title(f"{name}: seconds of a step (dotted: the limit for GEP)", fontsize=10)
        right.set_title("peak memory, GB", fontsize=10)
        right.set_yticks([])
    _save(figure, file)


def draw_scaling(results: dict[str, Any], file: Path) -> None:
    """Seconds above, memory below, a column for every axis."""
    axes_measured = results["axes"]
    columns = len(axes_measured)
    figure = Figure(figsize=(3.6 * columns, 6.4))
    axes = figure.subplots(2, columns, squeeze=False)
    for column, (axis, curves) in enumerate(axes_measured.items()):
        for row, (key, label) in enumerate((("seconds", "seconds of a step"), ("growth_mb", "MB above set-up"))):
            picture = axes[row][column]
            for name, curve in curves.items():
                picture.plot(
                    [point["at"] for point in curve],
                    [point[key] for point in curve],
                    marker="o",
                    markersize=3.5,
                    color=COLOURS[name],
                    label=plain_name(name),
                )
            picture.set_xscale("log", base=2)
            ticks = sorted({point["at"] for curve in curves.values() for point in curve})
            picture.set_xticks(ticks, [f"{tick:,}".replace(",", " ") for tick in ticks], fontsize=7, rotation=30)
            picture.set_ylim(bottom=0)
            picture.set_xlabel(TITLES[axis])
            picture.set_ylabel(label if column == 0 else "")
            picture.grid(alpha=0.25)
        axes[0][column].legend(fontsize=6.5, frameon=False)
    _save(figure, file)


def _save(figure: Figure, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
