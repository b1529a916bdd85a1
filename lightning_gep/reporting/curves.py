"""Curves over the training steps: validation accuracy, ε spent, and nonprivate diagnostics."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting import plots
from lightning_gep.reporting.groups import Settings, grouped, thinned
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import counted, short

POINTS, ROWS = 100, 15
"""Points of a curve in the plot, and of its numbers in words."""
MOST_POINTS = 4000
"""Of all curves of a plot."""
MAX_NAMED_RUNS = 10
"""Of more runs, those with the same settings look the same and share an entry of the legend."""


@dataclass(frozen=True)
class Quantity:
    """A logged quantity, how to show it, and how to log it if it is missing."""

    key: str
    logged: str
    title: str
    unit: str
    hint: str = ""
    scale: float = 1.0
    log: bool = False
    shown: Callable[[float], str] = short


TRAINING = [
    Quantity(
        "learning",
        "val/accuracy",
        "Learning curves",
        "Validation accuracy, %",
        "Learning curves need val/accuracy: log it in validation_step, with logger=csv (or CSVLogger).",
        scale=100.0,
    ),
    Quantity(
        "epsilon-steps",
        "privacy/epsilon",
        "ε over training",
        "ε spent",
        "ε over training needs privacy/epsilon: keep the PrivacyMonitor callback, and write a table with logger=csv.",
        shown=rounded_up,
    ),
]
DIAGNOSTICS = [
    Quantity(
        "projection-error", "nonprivate/projection_error", "Projection error", "‖mean residual‖ / ‖mean gradient‖"
    ),
    Quantity(
        "noise-to-signal", "nonprivate/noise_to_signal", "Noise-to-signal ratio", "‖noise‖ / ‖clipped sum‖", log=True
    ),
    Quantity(
        "residual-share", "nonprivate/residual_share", "Residual share", "‖residual‖ / ‖gradient‖, root mean square"
    ),
    Quantity("gradient-norm", "nonprivate/gradient_norm", "Gradient norm", "mean norm of a record's gradient"),
    Quantity("training-loss", "nonprivate/train/loss", "Training loss", "loss on private records"),
]


def over_steps(quantity: Quantity, runs: list[Run], settings: Settings) -> plots.Plot | None:
    """A line per run; None if the quantity was not logged."""
    runs = [run for run in runs if run.curve(quantity.logged)]
    if not runs:
        return None
    named = len(runs) <= MAX_NAMED_RUNS
    groups, notes = settings.groups(runs, "data", "epsilon", "k", "others")
    if named:
        groups, notes = grouped(runs, lambda run: run.place or run.job), []
    plot = plots.Plot(
        key=quantity.key,
        title=quantity.title,
        unit=quantity.unit,
        summary=f"{quantity.title} over the training steps, {counted(len(runs), 'run')}.",
        layout={
            "xaxis": plots.axis("step", rangemode="tozero"),
            "yaxis": {"type": "log", "dtick": "D2"} if quantity.log else {},
        },
        notes=notes,
    )
    for entry, members in zip(plots.entries(groups), groups.values(), strict=True):
        entry = replace(entry, label=members[0].job if named else entry.label, style=replace(entry.style, symbol=""))
        for run in members:
            points = [(step, quantity.scale * value) for step, value in run.curve(quantity.logged)]
            points = thinned(points, min(POINTS, max(2, MOST_POINTS // len(runs))))
            texts = [f"{entry.label}\nstep {step:g}: {quantity.shown(value)}" for step, value in points]
            plot.traces.append(plots.trace(points, texts, entry, opacity=1.0 if named else 0.6))
            plot.numbers.extend(thinned(texts, ROWS) if named else texts[-1:])
        plot.legend.append(entry)
    return plot if len(runs) > 1 else replace(plot, legend=[])
