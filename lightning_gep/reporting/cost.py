"""What the runs took: time and memory, by setting."""

from collections.abc import Callable

from lightning_gep.reporting.grouping import Settings, at_most, spread
from lightning_gep.reporting.load import Run
from lightning_gep.reporting.plot import Plot, Style, Table, Trace, styles, trace
from lightning_gep.reporting.text import counted, duration, memory

TIME_HINT = "Training time needs finished runs: it is in run.json when a run of gep-train has ended."
MEMORY_HINT = "Memory needs performance/peak_memory_mb, which gep-train logs while it trains."
MOST = 20
LONGEST = 30


def training_time(runs: list[Run], settings: Settings) -> Plot | None:
    """Seconds of every finished run, by setting."""
    return _strip("time", "Training time", "seconds", runs, settings, _seconds, duration)


def peak_memory(runs: list[Run], settings: Settings) -> Plot | None:
    """The peak of every run, by setting."""
    return _strip("memory", "Peak memory", "MB", runs, settings, peak, memory)


def peak(run: Run) -> float | None:
    """Peak memory in MB."""
    return run.newest("performance/peak_memory_mb")


def _seconds(run: Run) -> float | None:
    """Of finished runs only: another's time says how long it was allowed to live."""
    return run.seconds if run.finished and run.seconds else None


def _strip(
    key: str,
    title: str,
    unit: str,
    runs: list[Run],
    settings: Settings,
    value: Callable[[Run], float | None],
    shown: Callable[[float | None], str],
) -> Plot | None:
    """A row per setting: every run a faint point, the mean a mark. None for fewer than two runs."""
    known = [run for run in runs if value(run) is not None]
    if len(known) < 2:
        return None
    keys = [
        lambda run: settings.data(run) + settings.name(run),
        lambda run: settings.data(run) + settings.name(run, others=False),
        lambda run: settings.data(run) + settings.name(run, others=False, k=False),
    ]
    groups, _ = at_most(known, keys, MOST)
    looks = styles(groups)
    traces: list[Trace] = []
    rows = []
    for index, (name, members) in enumerate(groups.items()):
        values = [value(run) or 0.0 for run in members]
        mean, deviation = spread(values)
        text = f"{name}\nmean {shown(mean)}, {counted(len(values), 'run')}"
        traces += [
            _row(index, values, [f"{run.job}\n{shown(value(run))}" for run in members], looks[name], single=True),
            _row(index, [mean], [text], looks[name], single=False),
        ]
        rows.append([name, str(len(values)), *map(shown, (mean, deviation, min(values), max(values)))])
    labels = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in groups]
    upright = {
        "tickvals": list(range(len(labels))),
        "ticktext": labels,
        "range": [len(labels) - 0.5, -0.5],
        "automargin": True,
        "fixedrange": True,
    }
    return Plot(
        key=key,
        title=title,
        unit="",
        summary=f"{title} of {counted(len(known), 'run')} in {counted(len(groups), 'setting')}.",
        traces=traces,
        layout={"xaxis": {"title": {"text": unit}, "rangemode": "tozero"}, "yaxis": upright},
        legend=[],
        table=Table(["Setting", "Runs", "Mean", "Standard deviation", "Least", "Most"], rows),
        notes=["Marks are means, faint points the single runs."],
        height=110 + 30 * len(labels),
    )


def _row(index: int, values: list[float], texts: list[str], style: Style, *, single: bool) -> Trace:
    colour = f"{style.colour}/0.35" if single else style.colour
    mark = {"color": colour, "symbol": "circle" if single else style.symbol, "size": 6 if single else 10}
    places = [index] * len(values)
    return trace(values, places, texts, group=f"s{index}", style=style, mode="markers", marker=mark)
