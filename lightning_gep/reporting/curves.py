"""What was logged over the steps: validation accuracy, speed, and diagnostics that are not private."""

from collections.abc import Callable
from dataclasses import dataclass

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.grouping import Groups, Mean, Settings, at_most, epsilon_of, grouped, mean_curve, thinned
from lightning_gep.reporting.load import Run
from lightning_gep.reporting.plot import COLOURS, Entry, Plot, Style, Table, Trace, band, styles, trace
from lightning_gep.reporting.text import counted, with_spread

POINTS, ROWS = 100, 15
"""Points of a curve in the plot, and in the table beside it."""

SINGLE_RUNS = 10
"""So many runs get a curve each; more are averaged."""

LEARNING_HINT = "Learning curves need val/accuracy: log it in validation_step, and write a table with logger=csv."
SHARED_NOTE = (
    "There are many runs: those that differ in k, ε or other settings share a line where the legend does not name it."
)


@dataclass(frozen=True)
class Quantity:
    """Something logged over the steps, and how to show it."""

    key: str
    logged: str
    title: str
    unit: str
    scale: float = 1.0
    log: bool = False


LEARNING = Quantity("learning", "val/accuracy", "Learning curves", "Validation accuracy, %", 100.0)
DIAGNOSTICS = [
    Quantity(
        "projection-error", "nonprivate/projection_error", "Projection error", "‖mean residual‖ / ‖mean gradient‖"
    ),
    Quantity(
        "noise-to-signal", "nonprivate/noise_to_signal", "Noise against signal", "‖noise‖ / ‖clipped sum‖", log=True
    ),
    Quantity(
        "residual-share", "nonprivate/residual_share", "Share of the residual", "residual / gradient, root mean square"
    ),
    Quantity("gradient-norm", "nonprivate/gradient_norm", "Gradient norm", "mean norm of a record's gradient"),
    Quantity("training-loss", "nonprivate/train/loss", "Training loss", "loss on private records"),
]


def over_steps(quantity: Quantity, runs: list[Run], settings: Settings) -> Plot | None:
    """A line per run, or per group of runs with the standard deviation around it; None if it was not logged."""
    runs = [run for run in runs if run.curve(quantity.logged)]
    if not runs:
        return None
    single = len(runs) <= SINGLE_RUNS
    groups, passed = (grouped(runs, lambda run: run.place or run.job), 0) if single else _few_groups(runs, settings)
    banded = not single and len(groups) <= COLOURS
    looks = styles(groups)
    traces: list[Trace] = []
    legend, rows = [], []
    for index, (name, members) in enumerate(groups.items()):
        group, style = f"s{index}", looks[name]
        label = members[0].job if single else name
        points = _scaled(mean_curve(run.curve(quantity.logged) for run in members), quantity.scale)
        shown = thinned(points, POINTS)
        traces += [band([point[:3] for point in shown], group=group, style=style)] if banded else []
        traces.append(_line(shown, group, style, label))
        legend.append(Entry(group, label, style.as_line))
        rows += [
            [label, f"{step:g}", str(count), with_spread(mean, deviation, 3)]
            for step, mean, deviation, count in thinned(points, ROWS)
        ]
    means = ["Lines are means over runs, bands one standard deviation." if banded else "Lines are means over runs."]
    lines = counted(len(groups), "line")
    return Plot(
        key=quantity.key,
        title=quantity.title,
        unit=quantity.unit,
        summary=f"{quantity.title} over the training steps, {counted(len(runs), 'run')} in {lines}.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "step"}, "rangemode": "tozero"},
            "yaxis": {"type": "log", "dtick": "D2"} if quantity.log else {},
        },
        legend=legend if len(runs) > 1 else [],
        table=Table(["Runs of", "Step", "Runs", quantity.unit], rows),
        notes=([] if single else means) + ([SHARED_NOTE] if passed else []),
    )


def _few_groups(runs: list[Run], settings: Settings) -> tuple[Groups, int]:
    def key(*, epsilon: bool, **parts: bool) -> Callable[[Run], str]:
        return lambda run: (
            settings.data(run)
            + settings.name(run, **parts)
            + (f", ε = {rounded_up(epsilon_of(run))}" if epsilon else "")
        )

    keys = [
        key(epsilon=True),
        key(epsilon=True, others=False),
        key(epsilon=True, others=False, k=False),
        key(epsilon=False, others=False),
        key(epsilon=False, others=False, k=False),
    ]
    return at_most(runs, keys)


def _scaled(points: list[Mean], scale: float) -> list[Mean]:
    return [(step, scale * mean, None if sd is None else scale * sd, count) for step, mean, sd, count in points]


def _line(points: list[Mean], group: str, style: Style, label: str) -> Trace:
    texts = [f"{label}\nstep {step:g}: {with_spread(mean, sd, 3)}" for step, mean, sd, _ in points]
    mode = "lines" if len(points) > 1 else "markers"
    return trace([p[0] for p in points], [p[1] for p in points], texts, group=group, style=style, mode=mode)


def throughput(run: Run) -> Quantity | None:
    """What to show of the speed of one run."""
    for name, unit in [("records_per_second", "records a second"), ("steps_per_second", "steps a second")]:
        if len(run.curve(f"performance/{name}")) > 1:
            return Quantity("throughput", f"performance/{name}", "Speed", unit)
    return None
