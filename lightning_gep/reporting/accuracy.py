"""Test accuracy: against ε, beside the paper's curves, and against k."""

import math
from collections.abc import Callable
from dataclasses import replace

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting import plots
from lightning_gep.reporting.groups import (
    Groups,
    Settings,
    epsilon_of,
    mean_percentage,
    most_spent,
    percentages,
    spread,
)
from lightning_gep.reporting.published import EPSILONS, RESULTS, Published, remarks
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import counted, listed, mechanism_name

ACCURACY = "test/accuracy"
SPREAD_NOTE = "Markers are means over seeds, bars one standard deviation (n − 1)."

Place = Callable[[Run], float | None]
"""Where a run stands on the horizontal axis."""
Points = dict[float, list[Run]]
"""The runs of a line by their place, from left to right."""


def scored(runs: list[Run]) -> list[Run]:
    """The finished runs that have a test accuracy."""
    return [run for run in runs if run.finished and run.newest(ACCURACY) is not None]


def against_epsilon(
    runs: list[Run], settings: Settings, data: str, key: str = "accuracy-epsilon", label: str = ""
) -> plots.Plot | None:
    """One line per mechanism (and per k if there are several); None if there is nothing to compare.

    `data` is the name of the dataset, `label` what the title says about it.
    """
    runs = scored(runs)
    paper = RESULTS.get(data)
    finite = {x for run in runs if (x := epsilon_of(run)) is not None and math.isfinite(x)}
    if not finite or (len(finite) < 2 and paper is None):
        return None
    groups, pooled = settings.groups(runs, "k", "others")
    ticks = sorted(finite | set(EPSILONS if paper else ()))
    plot = _plot(groups, epsilon_of, "ε", ticks, key, label)
    notes = [f"{SPREAD_NOTE} ε is the target of a run, or what it spent if it has none.", *pooled]
    plot = replace(plot, notes=notes, wide=True, height=400)
    if paper is None:
        return plot
    own = len(plot.traces)
    _paper_curves(paper, plot)
    return replace(
        plot,
        summary=f"{plot.summary[:-1]}, beside the paper's published curves.",
        traces=plot.traces[own:] + plot.traces[:own],  # below our own
        notes=notes + remarks(paper),
    )


def against_k(runs: list[Run], settings: Settings, key: str = "accuracy-k", label: str = "") -> plots.Plot | None:
    """One line per mechanism and ε; None unless some line has two values of k."""
    groups, pooled = settings.groups([run for run in scored(runs) if run.k is not None], "epsilon", "others")
    groups = {series: found for series, found in groups.items() if len({run.k for run in found}) > 1}
    if not groups:
        return None
    ticks = sorted({float(run.k) for found in groups.values() for run in found if run.k is not None})
    plot = _plot(groups, lambda run: run.k, "k", ticks, key, label)
    return replace(plot, notes=[SPREAD_NOTE, *pooled])


def _plot(groups: Groups, place: Place, axis: str, ticks: list[float], key: str, label: str) -> plots.Plot:
    """Means with error bars, and a horizontal line for runs that have no finite ε."""
    count = counted(sum(map(len, groups.values())), "run")
    plot = plots.Plot(
        key=key,
        title=f"Test accuracy against {axis}" + (f": {label}" if label else ""),
        unit="Test accuracy, %",
        summary=f"Test accuracy against {axis} for {listed(list(groups))}, {count}.",
        layout={"xaxis": plots.axis_with_ticks(axis, ticks)},
    )
    for entry, runs in zip(plots.entries(groups), groups.values(), strict=True):
        places = sorted({x for run in runs if (x := place(run)) is not None})
        points = {x: [run for run in runs if place(run) == x] for x in places}
        texts = [_hover(entry, f"{axis} = {rounded_up(x)}", found) for x, found in points.items()]
        inside = {x: found for x, found in points.items() if math.isfinite(x)}
        traces = [_means(inside, texts, entry)] if inside else []
        traces += [_level(points[math.inf], texts[-1], ticks, entry)] if math.inf in points else []
        plot.add(entry, traces, texts)
    return plot


def _means(points: Points, texts: list[str], entry: plots.Entry) -> plots.Trace:
    means, deviations = zip(*(spread(percentages(runs, ACCURACY)) for runs in points.values()), strict=True)
    lengths = [round(deviation or 0.0, 4) for deviation in deviations]
    bars = {"type": "data", "array": lengths, "color": entry.style.color, "thickness": 1.5, "width": 4}
    pairs: list[plots.Pair] = list(zip(points, means, strict=True))
    more = {"error_y": bars} if any(lengths) else {}
    return plots.trace(pairs, texts[: len(pairs)], entry, mode="lines+markers", **more)


def _level(runs: list[Run], text: str, ticks: list[float], entry: plots.Entry) -> plots.Trace:
    """A line across the plot: without noise there is no finite ε at which to place the mean."""
    mean, _ = spread(percentages(runs, ACCURACY))
    ends = [(ticks[0] * 0.9, mean), (ticks[-1] * 1.1, mean)]
    dashed = replace(entry, style=replace(entry.style, dash="dash"))
    return plots.trace(ends, [text] * 2, dashed, mode="lines")


def _hover(entry: plots.Entry, where: str, runs: list[Run]) -> str:
    spent = f"{counted(len(runs), 'run')}, largest ε spent {most_spent(runs)}"
    return f"{entry.label}\n{where}: {mean_percentage(runs, ACCURACY)} %\n{spent}"


def _paper_curves(paper: Published, plot: plots.Plot) -> None:
    """The paper's curves at the ε it claims and, where it was computed, at the ε its noise gives by PLD."""
    for kind, accuracies in paper.accuracies.items():
        symbol = plots.SYMBOLS[kind]
        curves = [(f"paper-{kind}", "claimed ε", list(EPSILONS), plots.Style("@muted", f"{symbol}-open", "dot"))]
        if kind in paper.by_pld:
            curves.append((f"pld-{kind}", "ε by PLD", paper.by_pld[kind], plots.Style("@muted", symbol, "dash")))
        for group, which, epsilons, style in curves:
            entry = plots.Entry(group, f"{mechanism_name(kind)}, paper, {which}", style)
            pairs = list(zip(epsilons, accuracies, strict=True))
            texts = [f"{entry.label}\n{which} = {x:g}: {y:g} %" for x, y in pairs]
            plot.add(entry, [plots.trace(pairs, texts, entry, mode="lines+markers")], texts)
