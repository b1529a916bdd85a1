"""Test accuracy: against ε, and against k."""

import math
from collections.abc import Callable

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.groups import by_settings, epsilon_of, spread
from lightning_gep.reporting.plots import Plot, axis_with_ticks
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import counted, listed, with_spread

ACCURACY = "test/accuracy"
SPREAD_NOTE = (
    "Markers are means over runs with the same settings, bars one standard deviation (n − 1). ε is the target of a "
    "run, or what it spent if it has none."
)
AXES: dict[str, Callable[[Run], float | None]] = {"ε": epsilon_of, "k": lambda run: run.k}
"""Where a run stands on the horizontal axis."""


def accuracy_plots(runs: list[Run]) -> list[Plot]:
    """Test accuracy of the finished runs against ε and against k, for every dataset, where there is a comparison."""
    scored = [run for run in runs if run.finished and run.newest(ACCURACY) is not None]
    names = list(dict.fromkeys(run.data for run in scored))
    return [
        plot
        for index, data in enumerate(names)
        for axis, key in (("ε", "epsilon"), ("k", "k"))
        if (
            plot := accuracy_against(
                axis,
                [run for run in scored if run.data == data],
                key=f"accuracy-{key}{index or ''}",
                label=f": {data}" if len(names) > 1 else "",
            )
        )
    ]


def accuracy_against(axis: str, runs: list[Run], key: str, label: str = "") -> Plot | None:
    """A line for runs that differ in ε, or in k, and in the seed alone; None without two finite places."""
    place_of = AXES[axis]
    groups = by_settings([run for run in runs if place_of(run) is not None], axis)
    if axis == "k":  # mechanisms are compared at any ε, but a single k says nothing
        groups = {name: found for name, found in groups.items() if len({run.k for run in found}) > 1}
    places = (place_of(run) for found in groups.values() for run in found)
    ticks = sorted({x for x in places if x is not None and math.isfinite(x)})
    if len(ticks) < 2:
        return None
    plot = Plot(
        key=key,
        title=f"Test accuracy against {axis}{label}",
        unit="Test accuracy, %",
        summary=f"Test accuracy against {axis} for {listed(list(groups))}, {counted(len(runs), 'run')}.",
        layout={"xaxis": axis_with_ticks(axis, ticks)},
        notes=[SPREAD_NOTE],
        wide=axis == "ε",
    )
    for place, (name, found) in enumerate(groups.items()):
        _add_line(plot, name, place, found, axis, ticks)
    return plot


def _add_line(plot: Plot, name: str, place: int, runs: list[Run], axis: str, ticks: list[float]) -> None:
    """Means with error bars, and a horizontal line for runs that have no finite ε."""
    private = not any(run.not_private for run in runs)
    points: list[tuple[float, float]] = []
    deviations, texts = list[float](), list[str]()
    for x in sorted({x for run in runs if (x := AXES[axis](run)) is not None}):
        there = [run for run in runs if AXES[axis](run) == x]
        mean, deviation = spread([100 * (run.newest(ACCURACY) or 0.0) for run in there])
        most = rounded_up(max((run.epsilon for run in there if run.epsilon is not None), default=None))
        text = (
            f"{name}\n{axis} = {rounded_up(x)}: {with_spread(mean, deviation, 2)} %\n"
            f"{counted(len(there), 'run')}, largest ε spent {most}"
        )
        plot.numbers.append(text)
        if math.isinf(x):
            level = [(ticks[0] * 0.9, mean), (ticks[-1] * 1.1, mean)]
            plot.add(name, place, level, [text] * 2, private=private, mode="lines")
        else:
            points, deviations, texts = [*points, (x, mean)], [*deviations, round(deviation or 0.0, 4)], [*texts, text]
    if points:
        bars = {"error_y": {"type": "data", "array": deviations, "thickness": 1.5, "width": 4}}
        plot.add(name, place, points, texts, private=private, **(bars if any(deviations) else {}))
