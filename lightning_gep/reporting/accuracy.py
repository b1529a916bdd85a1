"""Test accuracy against ε, beside the paper's curves, and against k."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting import plots
from lightning_gep.reporting.groups import MAX_SERIES, Groups, Settings, at_most, epsilon_of, spread
from lightning_gep.reporting.published import EPSILONS, NAMES, RESULTS, Published, remarks
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import counted, listed, short, with_spread

EPSILON_HINT = (
    "Test accuracy against ε needs finished runs at several ε: gep-train -m privacy.epsilon=1,2,4,8 seed=0,1,2"
)
K_HINT = "Accuracy against k needs finished runs with several k: gep-train -m mechanism.k=50,100,200 seed=0,1,2"
SPREAD_NOTE = "Markers are means over seeds, bars one standard deviation (n − 1), faint points single runs."

Place = Callable[[Run], float | None]
"""Where a run stands on the horizontal axis."""


@dataclass(frozen=True)
class Point:
    """The runs of one series at one place of the horizontal axis."""

    x: float
    runs: list[Run]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracies in percent."""
        return [100 * (run.newest("test/accuracy") or 0.0) for run in self.runs]

    @property
    def shown(self) -> str:
        """Mean ± standard deviation."""
        return with_spread(*spread(self.accuracies), 2)


def scored(runs: list[Run]) -> list[Run]:
    """The finished runs that have a test accuracy."""
    return [run for run in runs if run.finished and run.newest("test/accuracy") is not None]


def points(runs: list[Run], place: Place) -> list[Point]:
    """The runs by their place on the axis, from left to right."""
    found: dict[float, list[Run]] = {}
    for run in runs:
        if (x := place(run)) is not None:
            found.setdefault(x, []).append(run)
    return [Point(x, members) for x, members in sorted(found.items())]


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
    groups, pooled = at_most(runs, [settings.name, lambda run: settings.name(run, others=False)])
    ticks = sorted(finite | set(EPSILONS if paper else ()))
    plot = _plot(groups, epsilon_of, "ε", ticks, key, label)
    assert plot.table is not None
    notes = [f"{SPREAD_NOTE} ε is the target of a run, or what it spent if it has none.", *_pooled(settings, pooled)]
    if paper is None:
        return replace(plot, notes=notes, wide=True, height=400)
    curves, entries = paper_curves(paper)
    return replace(
        plot,
        summary=f"{plot.summary[:-1]}, beside the paper's published curves.",
        traces=curves + plot.traces,
        legend=plot.legend + entries,
        table=replace(plot.table, rows=plot.table.rows + paper_rows(paper)),
        notes=notes + remarks(paper),
        wide=True,
        height=400,
    )


def against_k(runs: list[Run], settings: Settings, key: str = "accuracy-k", label: str = "") -> plots.Plot | None:
    """One line per mechanism and ε; None unless some line has two values of k."""
    keys: list[Callable[[Run], str]] = [
        lambda run: settings.name(run, k=False, epsilon=True),
        lambda run: settings.name(run, k=False, epsilon=True, others=False),
        lambda run: settings.name(run, k=False, others=False),
    ]
    groups, pooled = at_most([run for run in scored(runs) if run.k is not None], keys)
    groups = {series: found for series, found in groups.items() if len({run.k for run in found}) > 1}
    if not groups:
        return None
    ticks = sorted({float(run.k) for found in groups.values() for run in found if run.k is not None})
    plot = _plot(groups, lambda run: run.k, "k", ticks, key, label)
    return replace(plot, notes=[SPREAD_NOTE, *_pooled(settings, pooled)])


def _plot(groups: Groups, place: Place, axis: str, ticks: list[float], key: str, label: str) -> plots.Plot:
    traces, legend = _series(groups, place, axis, ticks)
    rows = [
        [name, rounded_up(point.x), most_spent(point.runs), str(len(point.runs)), point.shown]
        for name, members in groups.items()
        for point in points(members, place)
    ]
    runs = counted(sum(map(len, groups.values())), "run")
    return plots.Plot(
        key=key,
        title=f"Test accuracy against {axis}" + (f": {label}" if label else ""),
        unit="Test accuracy, %",
        summary=f"Test accuracy against {axis} for {listed(list(groups))}, {runs}.",
        traces=traces,
        layout={"xaxis": plots.axis_with_ticks(axis, ticks)},
        legend=legend,
        table=plots.Table(["Setting", axis, "Largest ε spent", "Runs", "Test accuracy, %"], rows),
    )


def _series(groups: Groups, place: Place, axis: str, ticks: list[float]) -> tuple[list[plots.Trace], list[plots.Entry]]:
    """Single runs, means with error bars, and a horizontal line for runs that have no finite ε."""
    traces: list[plots.Trace] = []
    legend = []
    looks = plots.styles(groups)
    for number, (name, runs) in enumerate(groups.items()):
        group, style = f"s{number}", looks[name]
        found = points(runs, place)
        inside = [point for point in found if math.isfinite(point.x)]
        if inside:
            traces += [_singles(inside, group, style), _means(inside, group, style, name, axis)]
        traces += [_level(point, ticks, group, style, name) for point in found if math.isinf(point.x)]
        legend.append(plots.Entry(group, name, style))
    return traces, legend


def _singles(found: list[Point], group: str, style: plots.Style) -> plots.Trace:
    runs = [(point.x, y, run) for point in found for run, y in zip(point.runs, point.accuracies, strict=True)]
    texts = [f"{run.job}\n{y:.2f} %, ε spent {rounded_up(run.epsilon)}" for _, y, run in runs]
    return plots.single_runs([(x, y) for x, y, _ in runs], texts, group=group, style=style)


def _means(found: list[Point], group: str, style: plots.Style, name: str, axis: str) -> plots.Trace:
    texts = [
        f"{name}\n{axis} = {short(point.x)}: {point.shown} %\n{counted(len(point.runs), 'run')}" for point in found
    ]
    means, deviations = zip(*(spread(point.accuracies) for point in found), strict=True)
    lengths = [round(deviation or 0.0, 4) for deviation in deviations]
    bars = {"type": "data", "array": lengths, "color": style.color, "thickness": 1.5, "width": 4}
    pairs: list[plots.Pair] = list(zip((point.x for point in found), means, strict=True))
    more = {"error_y": bars} if any(lengths) else {}
    return plots.trace(pairs, texts, group=group, style=style, mode="lines+markers", **more)


def _level(point: Point, ticks: list[float], group: str, style: plots.Style, name: str) -> plots.Trace:
    """A line across the plot: without noise there is no finite ε at which to place the mean."""
    text = f"{name}\nε = ∞: {point.shown} %\n{counted(len(point.runs), 'run')}"
    mean, _ = spread(point.accuracies)
    ends = [(ticks[0] * 0.9, mean), (ticks[-1] * 1.1, mean)]
    return plots.trace(ends, [text] * 2, group=group, style=replace(style, dash="dash"), mode="lines")


def paper_curves(paper: Published) -> tuple[list[plots.Trace], list[plots.Entry]]:
    """The paper's curves at the ε it claims and, where it was computed, at the ε its noise gives by PLD."""
    traces, legend = [], []
    for kind, accuracies in paper.accuracies.items():
        symbol = plots.SYMBOLS[kind]
        curves = [(f"paper-{kind}", "claimed ε", EPSILONS, plots.Style("@muted", f"{symbol}-open", "dot"))]
        if kind in paper.by_pld:
            curves.append((f"pld-{kind}", "ε by PLD", paper.by_pld[kind], plots.Style("@muted", symbol, "dash")))
        for group, which, epsilons, style in curves:
            name = f"{NAMES[kind]}, paper, {which}"
            pairs = list(zip(epsilons, accuracies, strict=True))
            texts = [f"{name}\n{which} = {x:g}: {y:g} %" for x, y in pairs]
            traces.append(plots.trace(pairs, texts, group=group, style=style, mode="lines+markers"))
            legend.append(plots.Entry(group, name, style))
    return traces, legend


def paper_rows(paper: Published) -> list[list[str]]:
    """The paper's table, with the ε by PLD where it was computed."""
    rows = []
    for kind, values in paper.accuracies.items():
        true = [f"{epsilon:g} (PLD)" for epsilon in paper.by_pld.get(kind, ())] or ["not computed"] * len(EPSILONS)
        for claimed, spent, value in zip(EPSILONS, true, values, strict=True):
            rows.append([f"{NAMES[kind]}, paper", f"{claimed:g} claimed", spent, "", f"{value:g}"])
    return rows


def most_spent(runs: list[Run]) -> str:
    """The largest ε that one of the runs spent."""
    return rounded_up(max((run.epsilon for run in runs if run.epsilon is not None), default=None))


def _pooled(settings: Settings, pooled: bool) -> list[str]:
    differing = listed(settings.varying) or "other settings"
    note = f"At most {MAX_SERIES} lines are drawn: runs that differ in {differing} share one, so the spread is "
    return [f"{note}not over seeds alone."] if pooled else []
