"""Training time and memory by setting."""

from collections.abc import Callable

from lightning_gep.reporting.groups import Settings, at_most, spread
from lightning_gep.reporting.plots import Plot, Table, Trace, axis, single_runs, styles, trace
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import counted, duration, memory

TIME_HINT = "Training time needs at least two finished runs of gep-train."
MEMORY_HINT = "Memory needs performance/peak_memory_mb of at least two runs, which gep-train logs."
MAX_ROWS = 20
MAX_LABEL = 30


def training_time(runs: list[Run], settings: Settings) -> Plot | None:
    """Seconds per finished run; the time of an unfinished run only says how long it was allowed to live."""
    times = [(run, run.seconds) for run in runs if run.finished and run.seconds]
    return _strip("time", "Training time", "seconds", times, settings, duration)


def peak_memory(runs: list[Run], settings: Settings) -> Plot | None:
    """Peak memory per run."""
    peaks = [(run, found) for run in runs if (found := peak(run)) is not None]
    return _strip("memory", "Peak memory", "MB", peaks, settings, memory)


def peak(run: Run) -> float | None:
    """Peak memory in MB."""
    return run.newest("performance/peak_memory_mb")


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
    keys: list[Callable[[Run], str]] = [
        lambda run: settings.name(run, data=True),
        lambda run: settings.name(run, data=True, others=False),
        lambda run: settings.name(run, data=True, others=False, k=False),
    ]
    groups, _ = at_most([run for run, _ in measured], keys, MAX_ROWS)
    looks = styles(groups)
    by_run = {id(run): value for run, value in measured}
    traces: list[Trace] = []
    rows = []
    for index, (name, members) in enumerate(groups.items()):
        group, style = f"s{index}", looks[name]
        values = [by_run[id(run)] for run in members]
        mean, deviation = spread(values)
        texts = [f"{run.job}\n{shown(value)}" for run, value in zip(members, values, strict=True)]
        traces.append(single_runs([(value, index) for value in values], texts, group=group, style=style))
        text = f"{name}\nmean {shown(mean)}, {counted(len(values), 'run')}"
        marker = {"color": style.color, "symbol": style.symbol, "size": 10}
        traces.append(trace([(mean, index)], [text], group=group, style=style, marker=marker))
        rows.append([name, str(len(values)), *map(shown, (mean, deviation, min(values), max(values)))])
    labels = [name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…" for name in groups]
    vertical = {
        "tickvals": list(range(len(labels))),
        "ticktext": labels,
        "range": [len(labels) - 0.5, -0.5],
        "fixedrange": True,
    }
    return Plot(
        key=key,
        title=title,
        unit="",
        summary=f"{title} of {counted(len(measured), 'run')} in {counted(len(groups), 'setting')}.",
        traces=traces,
        layout={"xaxis": axis(unit, rangemode="tozero"), "yaxis": vertical},
        legend=[],
        table=Table(["Setting", "Runs", "Mean", "Standard deviation", "Least", "Most"], rows),
        notes=["Markers are means, faint points single runs."],
        height=110 + 30 * len(labels),
    )
