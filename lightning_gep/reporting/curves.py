"""Curves over the training steps: validation accuracy, ε spent, and nonprivate diagnostics."""

from collections.abc import Callable
from dataclasses import dataclass

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.groups import by_settings, grouped, thinned
from lightning_gep.reporting.plots import Plot, Section
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
NONPRIVATE_HINT = (
    "Projection error and noise-to-signal ratio are computed from private records and are not logged. For public data, "
    "or for a run that will not be released: privacy.log_nonprivate=true"
)


def curve_sections(runs: list[Run]) -> list[Section]:
    """Training, and apart from it the nonprivate diagnostics. What was not logged is left out, with a hint."""
    training = [(over_steps(quantity, runs), quantity.hint) for quantity in TRAINING]
    shown, hints = [plot for plot, _ in training if plot], [hint for plot, hint in training if plot is None]
    diagnostics = [plot for quantity in DIAGNOSTICS if (plot := over_steps(quantity, runs))]
    missing = [] if diagnostics else [NONPRIVATE_HINT]
    return [
        Section("training", "Training", shown, hints),
        Section("nonprivate", "Diagnostics", diagnostics, missing, private=False),
    ]


def over_steps(quantity: Quantity, runs: list[Run]) -> Plot | None:
    """A line per run; None if the quantity was not logged."""
    runs = [run for run in runs if run.curve(quantity.logged)]
    if not runs:
        return None
    named = len(runs) <= MAX_NAMED_RUNS
    plot = Plot(
        key=quantity.key,
        title=quantity.title,
        unit=quantity.unit,
        summary=f"{quantity.title} over the training steps, {counted(len(runs), 'run')}.",
        layout={
            "xaxis": {"title": {"text": "step"}, "rangemode": "tozero"},
            "yaxis": {"type": "log", "dtick": "D2"} if quantity.log else {},
        },
    )
    groups = grouped(runs, lambda run: run.place or run.job) if named else by_settings(runs)
    for place, (group, members) in enumerate(groups.items()):
        name = members[0].job if named else group
        for run in members:
            points = [(step, quantity.scale * value) for step, value in run.curve(quantity.logged)]
            points = thinned(points, min(POINTS, max(2, MOST_POINTS // len(runs))))
            texts = [f"{name}\nstep {step:g}: {quantity.shown(value)}" for step, value in points]
            mode = "lines" if len(points) > 1 else "markers"
            plot.add(name, place, points, texts, private=not run.not_private, mode=mode, opacity=1.0 if named else 0.6)
            plot.numbers.extend(thinned(texts, ROWS) if named else texts[-1:])
    return plot
