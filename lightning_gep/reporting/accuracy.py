"""Accuracy against ε, with the paper's curves beside it, and accuracy against k."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting import published
from lightning_gep.reporting.grouping import MOST_SERIES, Groups, Settings, at_most, epsilon_of, spread
from lightning_gep.reporting.load import Run
from lightning_gep.reporting.plot import SYMBOLS, Entry, Plot, Style, Table, Trace, log_if_wide, styles, trace
from lightning_gep.reporting.text import counted, listed, short, with_spread

EPSILON_HINT = (
    "Test accuracy against ε needs finished runs at several ε: gep-train -m privacy.epsilon=1,2,4,8 seed=0,1,2"
)
K_HINT = "Accuracy against k needs finished runs with several k: gep-train -m mechanism.k=50,100,200 seed=0,1,2"
SPREAD_NOTE = "Marks are means over seeds, bars one standard deviation (n − 1), faint points the single runs."
COLUMNS = ["Setting", "ε", "ε spent, at most", "Runs", "Test accuracy, %"]


@dataclass(frozen=True)
class Point:
    """The runs of one series at one place of the horizontal axis; accuracies in percent."""

    x: float
    runs: list[Run]
    accuracies: list[float]

    @property
    def mean(self) -> float:
        """The mean accuracy."""
        return spread(self.accuracies)[0]

    @property
    def deviation(self) -> float | None:
        """The standard deviation, or None for one run."""
        return spread(self.accuracies)[1]

    @property
    def shown(self) -> str:
        """Mean ± deviation."""
        return with_spread(self.mean, self.deviation, 2)


def scored(runs: list[Run]) -> list[Run]:
    """The finished runs that have a test accuracy."""
    return [run for run in runs if run.finished and run.newest("test/accuracy") is not None]


def points(runs: list[Run], place: Callable[[Run], float | None]) -> list[Point]:
    """The runs by their place on the axis, from left to right."""
    groups: dict[float, list[Run]] = {}
    for run in runs:
        x = place(run)
        if x is not None:
            groups.setdefault(x, []).append(run)
    return [
        Point(x, found, [100 * (run.newest("test/accuracy") or 0.0) for run in found])
        for x, found in sorted(groups.items())
    ]


def against_epsilon(
    runs: list[Run], settings: Settings, data: str, key: str = "accuracy-epsilon", label: str = ""
) -> Plot | None:
    """One line per mechanism (and k where several); None if there is nothing to compare.

    `data` is the data set by name, `label` what the title says of it.
    """
    runs = scored(runs)
    paper = published.RESULTS.get(data)
    finite = {x for run in runs if (x := epsilon_of(run)) is not None and math.isfinite(x)}
    if not finite or (len(finite) < 2 and paper is None):
        return None
    groups, passed = at_most(runs, [settings.name, lambda run: settings.name(run, others=False)])
    ticks = sorted(finite | (set(published.EPSILONS) if paper else set()))
    traces, legend, rows = _series(groups, epsilon_of, "ε", ticks)
    rows = [
        [name, rounded_up(point.x), _most_spent(point), str(len(point.runs)), point.shown]
        for name, point in rows_of(groups)
    ]
    notes = [f"{SPREAD_NOTE} ε is the target of a run, or what it spent without one.", *pooled(settings, passed)]
    if paper:
        more, entries = paper_curves(paper)
        traces, legend = more + traces, legend + entries
        rows += paper_rows(paper)
        notes += published.remarks(paper)
    return Plot(
        key=key,
        title="Test accuracy against ε" + (f": {label}" if label else ""),
        unit="Test accuracy, %",
        summary=f"Test accuracy against ε for {listed(list(groups))}, {counted(len(runs), 'run')}"
        + (", beside the paper's published curves" if paper else "")
        + ".",
        traces=traces,
        layout={"xaxis": {"title": {"text": "ε"}, **log_if_wide(ticks)}},
        legend=legend,
        table=Table(COLUMNS, rows),
        notes=notes,
        wide=True,
        height=400,
    )


def rows_of(groups: Groups) -> list[tuple[str, Point]]:
    """Every mean of the plot with the name of its series."""
    return [(name, point) for name, runs in groups.items() for point in points(runs, epsilon_of)]


def against_k(runs: list[Run], settings: Settings, label: str = "", key: str = "accuracy-k") -> Plot | None:
    """One line per mechanism and ε; None unless some line has two k."""
    runs = [run for run in scored(runs) if run.k is not None]

    def name(run: Run, others: bool = True) -> str:
        return f"{settings.name(run, k=False, others=others)}, ε = {rounded_up(epsilon_of(run))}"

    keys = [name, lambda run: name(run, False), lambda run: settings.name(run, k=False, others=False)]
    groups, passed = at_most(runs, keys)
    groups = {series: found for series, found in groups.items() if len({run.k for run in found}) > 1}
    if not groups:
        return None
    ticks = sorted({float(run.k) for found in groups.values() for run in found if run.k is not None})
    traces, legend, rows = _series(groups, lambda run: None if run.k is None else float(run.k), "k", ticks)
    return Plot(
        key=key,
        title="Test accuracy against k" + (f": {label}" if label else ""),
        unit="Test accuracy, %",
        summary=f"Test accuracy against the dimension k of the anchor subspace for {listed(list(groups))}.",
        traces=traces,
        layout={"xaxis": {"title": {"text": "k"}, **log_if_wide(ticks)}},
        legend=legend,
        table=Table(["Setting", "k", "Runs", "Test accuracy, %"], rows),
        notes=[SPREAD_NOTE, *pooled(settings, passed)],
    )


def _series(
    groups: Groups, place: Callable[[Run], float | None], axis: str, ticks: list[float]
) -> tuple[list[Trace], list[Entry], list[list[str]]]:
    """Single runs, means with bars, and a level line for what has no place on the axis (ε = ∞)."""
    traces: list[Trace] = []
    legend, rows = [], []
    looks = styles(groups)
    for number, (name, runs) in enumerate(groups.items()):
        group, style = f"s{number}", looks[name]
        found = points(runs, place)
        inside = [point for point in found if math.isfinite(point.x)]
        traces += [_singles(inside, group, style, axis), _means(inside, group, style, name, axis)] if inside else []
        traces += [_level(point, ticks, group, style, name) for point in found if math.isinf(point.x)]
        legend.append(Entry(group, name, style))
        rows += [[name, short(point.x), str(len(point.runs)), point.shown] for point in found]
    return traces, legend, rows


def _singles(found: list[Point], group: str, style: Style, axis: str) -> Trace:
    pairs = [(point.x, run, value) for point in found for run, value in zip(point.runs, point.accuracies, strict=True)]
    texts = [f"{run.job}\n{value:.2f} %, ε spent {rounded_up(run.epsilon)}" for _, run, value in pairs]
    faint = {"color": f"{style.colour}/0.35", "symbol": "circle", "size": 6}
    return trace(
        [x for x, _, _ in pairs],
        [value for _, _, value in pairs],
        texts,
        group=group,
        style=style,
        mode="markers",
        marker=faint,
    )


def _means(found: list[Point], group: str, style: Style, name: str, axis: str) -> Trace:
    texts = [
        f"{name}\n{axis} = {short(point.x)}: {point.shown} %\n{counted(len(point.runs), 'run')}" for point in found
    ]
    deviations = [point.deviation or 0.0 for point in found]
    bars = {
        "type": "data",
        "array": [round(value, 4) for value in deviations],
        "color": style.colour,
        "thickness": 1.5,
        "width": 4,
    }
    more = {"error_y": bars} if any(deviations) else {}
    x, y = [point.x for point in found], [point.mean for point in found]
    return trace(x, y, texts, group=group, style=style, mode="lines+markers", **more)


def _level(point: Point, ticks: list[float], group: str, style: Style, name: str) -> Trace:
    """A line across the plot: without noise there is no ε to put the mean at."""
    ends = [ticks[0] * 0.9, ticks[-1] * 1.1]
    text = f"{name}\nε = ∞: {point.shown} %\n{counted(len(point.runs), 'run')}"
    return trace(
        ends, [point.mean] * 2, [text] * 2, group=group, style=Style(style.colour, style.symbol, "dash"), mode="lines"
    )


def paper_curves(paper: published.Published) -> tuple[list[Trace], list[Entry]]:
    """The paper's curves at the ε it claims, and those that were accounted again at the ε they really have."""
    traces, legend = [], []
    for kind, values in paper.accuracies.items():
        name = f"{published.NAMES[kind]}, paper, claimed ε"
        style = Style("@muted", f"{published_symbol(kind)}-open", "dot")
        texts = [f"{name}\nε = {x:g} claimed: {y:g} %" for x, y in zip(published.EPSILONS, values, strict=True)]
        traces.append(
            trace(published.EPSILONS, values, texts, group=f"paper-{kind}", style=style, mode="lines+markers")
        )
        legend.append(Entry(f"paper-{kind}", name, style))
        if true := paper.by_pld.get(kind):
            name = f"{published.NAMES[kind]}, paper, ε by PLD"
            style = Style("@muted", published_symbol(kind), "dash")
            texts = [f"{name}\nε = {x:g}: {y:g} %" for x, y in zip(true, values, strict=True)]
            traces.append(trace(true, values, texts, group=f"pld-{kind}", style=style, mode="lines+markers"))
            legend.append(Entry(f"pld-{kind}", name, style))
    return traces, legend


def published_symbol(kind: str) -> str:
    """The mark of a mechanism, the same as for our own runs."""
    return SYMBOLS.get(kind, "circle")


def paper_rows(paper: published.Published) -> list[list[str]]:
    """The paper's table, with the ε by PLD where it was computed."""
    return [
        [
            f"{published.NAMES[kind]}, paper",
            f"{claimed:g} claimed",
            f"{true:g} (PLD)" if true else "not computed",
            "",
            f"{value:g}",
        ]
        for kind, values in paper.accuracies.items()
        for claimed, value, true in zip(published.EPSILONS, values, paper.by_pld.get(kind, (None,) * 3), strict=True)
    ]


def _most_spent(point: Point) -> str:
    return rounded_up(max((run.epsilon for run in point.runs if run.epsilon is not None), default=None))


def pooled(settings: Settings, passed: int) -> list[str]:
    """Says so where runs with different settings share a line."""
    if not passed:
        return []
    differing = listed(settings.varying) or "other settings"
    return [
        f"More than {MOST_SERIES} lines cannot be read: runs that differ in {differing} share one, "
        "so the spread is not over seeds alone."
    ]
