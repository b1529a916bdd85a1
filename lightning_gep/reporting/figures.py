"""All plots of a report in sections. Quantities that were not logged are left out, with a hint how to log them."""

from collections.abc import Callable
from dataclasses import replace

from lightning_gep.reporting import accuracy, curves
from lightning_gep.reporting.groups import Settings, spread
from lightning_gep.reporting.plots import Plot, Section, axis, entries, single_runs, trace
from lightning_gep.reporting.published import RESULTS
from lightning_gep.reporting.runs import Collection, Run
from lightning_gep.reporting.text import counted, duration, memory

NONPRIVATE_HINT = (
    "Projection error and noise-to-signal ratio are computed from private records and are not logged. For public data, "
    "or for a run that will not be released: privacy.log_nonprivate=true"
)
MAX_ROWS, MAX_LABEL = 20, 30


def sections(collection: Collection) -> list[Section]:
    """Results, training, cost, and apart from them the nonprivate diagnostics."""
    runs, settings = collection.runs, Settings(collection.runs)
    learning = curves.over_steps(curves.LEARNING, runs, settings)
    spending = curves.epsilon_over_training(runs)
    missing = [curves.LEARNING_HINT] if learning is None else []
    missing += [curves.SPENDING_HINT] if spending is None else []
    if collection.single:
        speeds = (curves.over_steps(quantity, runs, settings) for quantity in curves.SPEEDS)
        costs = [next((plot for plot in speeds if plot), None)]
    else:
        # The time of an unfinished run only says how long it was allowed to live.
        times = [(run, run.seconds) for run in runs if run.finished and run.seconds]
        peaks = [(run, peak) for run in runs if (peak := run.newest("performance/peak_memory_mb")) is not None]
        costs = [
            _strip("time", "Training time", "seconds", times, settings, duration),
            _strip("memory", "Peak memory", "MB", peaks, settings, memory),
        ]
    diagnostics = [plot for quantity in curves.DIAGNOSTICS if (plot := curves.over_steps(quantity, runs, settings))]
    return [
        Section("results", "Results", _results(runs)),
        Section("training", "Training", [plot for plot in (learning, spending) if plot], missing),
        Section("cost", "Time and memory", [plot for plot in costs if plot]),
        Section("nonprivate", "Diagnostics", diagnostics, [] if diagnostics else [NONPRIVATE_HINT], private=False),
    ]


def _results(runs: list[Run]) -> list[Plot]:
    """Accuracy against ε and against k, for every dataset."""
    names = list(dict.fromkeys(run.data for run in accuracy.scored(runs)))
    plots = []
    for index, data in enumerate(names):
        members = [run for run in runs if run.data == data]
        settings = Settings(members)
        suffix = f"-{index}" if len(names) > 1 else ""
        label = data if len(names) > 1 or data in RESULTS else ""
        plots.append(accuracy.against_epsilon(members, settings, data, f"accuracy-epsilon{suffix}", label))
        plots.append(accuracy.against_k(members, settings, f"accuracy-k{suffix}", label))
    return [plot for plot in plots if plot]


def _strip(
    key: str,
    title: str,
    unit: str,
    measured: list[tuple[Run, float]],
    settings: Settings,
    shown: Callable[[float | None], str],
) -> Plot | None:
    """A row per setting: every run a faint point, the mean a marker. None for fewer than two runs."""
    if len(measured) < 2:
        return None
    groups, _ = settings.groups([run for run, _ in measured], "data", "k", "others", most=MAX_ROWS)
    by_run = {id(run): value for run, value in measured}
    labels = [name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…" for name in groups]
    ticks = {"tickvals": list(range(len(labels))), "ticktext": labels}
    plot = Plot(
        key=key,
        title=title,
        unit="",
        summary=f"{title} of {counted(len(measured), 'run')} in {counted(len(groups), 'setting')}.",
        layout={
            "xaxis": axis(unit, rangemode="tozero"),
            "yaxis": {**ticks, "range": [len(labels) - 0.5, -0.5], "fixedrange": True},
        },
        notes=["Markers are means, faint points single runs."],
        height=110 + 30 * len(labels),
    )
    for index, (entry, members) in enumerate(zip(entries(groups), groups.values(), strict=True)):
        values = [by_run[id(run)] for run in members]
        mean, deviation = spread(values)
        texts = [f"{run.job}\n{shown(value)}" for run, value in zip(members, values, strict=True)]
        singles = single_runs([(value, index) for value in values], texts, entry)
        about = f"standard deviation {shown(deviation)}, {shown(min(values))} to {shown(max(values))}"
        text = f"{entry.label}\nmean {shown(mean)}, {about}\n{counted(len(values), 'run')}"
        marker = {"color": entry.style.color, "symbol": entry.style.symbol, "size": 10}
        plot.add(entry, [singles, trace([(mean, index)], [text], entry, marker=marker)], [text])
    return replace(plot, legend=[])  # the rows are named on the axis
