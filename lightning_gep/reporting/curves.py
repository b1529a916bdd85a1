"""Curves over the training steps: validation accuracy, speed, ε spent, and nonprivate diagnostics."""

import math
from dataclasses import dataclass, replace

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting import plots
from lightning_gep.reporting.groups import MAX_SERIES, Settings, grouped, mean_curve, thinned
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import counted, with_spread

POINTS, ROWS = 100, 15
"""Points of a curve in the plot, and of its numbers in words."""

MAX_SINGLE_RUNS = 10
"""Up to this many runs get a curve each; more are averaged."""

LEARNING_HINT = "Learning curves need val/accuracy: log it in validation_step, with logger=csv (or CSVLogger)."
SPENDING_HINT = (
    "ε over training needs privacy/epsilon: keep the PrivacyMonitor callback, and write a table with logger=csv."
)


@dataclass(frozen=True)
class Quantity:
    """A logged quantity and how to show it."""

    key: str
    logged: str
    title: str
    unit: str
    scale: float = 1.0
    log: bool = False


LEARNING = Quantity("learning", "val/accuracy", "Learning curves", "Validation accuracy, %", 100.0)
SPEEDS = [
    Quantity("throughput", "performance/records_per_second", "Speed", "records per second"),
    Quantity("throughput", "performance/steps_per_second", "Speed", "steps per second"),  # without privacy
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
    """A line per run, or per group of runs with its standard deviation; None if the quantity was not logged."""
    runs = [run for run in runs if run.curve(quantity.logged)]
    if not runs:
        return None
    single = len(runs) <= MAX_SINGLE_RUNS
    groups, notes = settings.groups(runs, "data", "epsilon", "k", "others")
    if single:
        groups = grouped(runs, lambda run: run.place or run.job)
    banded = not single and len(groups) <= plots.COLORS
    means = f"Lines are means over runs{', bands one standard deviation' if banded else ''}."
    in_lines = f"{counted(len(runs), 'run')} in {counted(len(groups), 'line')}"
    plot = plots.Plot(
        key=quantity.key,
        title=quantity.title,
        unit=quantity.unit,
        summary=f"{quantity.title} over the training steps, {in_lines}.",
        layout={
            "xaxis": plots.axis("step", rangemode="tozero"),
            "yaxis": {"type": "log", "dtick": "D2"} if quantity.log else {},
        },
        notes=[] if single else [means, *notes],
    )
    for entry, members in zip(plots.entries(groups), groups.values(), strict=True):
        entry = replace(entry, label=members[0].job if single else entry.label, style=replace(entry.style, symbol=""))
        points = mean_curve((run.curve(quantity.logged) for run in members), quantity.scale)
        shown = thinned(points, POINTS)
        texts = [f"{entry.label}\nstep {p.step:g}: {with_spread(p.mean, p.deviation, 3)}" for p in shown]
        traces = [plots.band(shown, entry)] if banded else []
        traces.append(plots.trace([(p.step, p.mean) for p in shown], texts, entry))
        plot.add(entry, traces, thinned(texts, ROWS))
    return plot if len(runs) > 1 else replace(plot, legend=[])


def epsilon_over_training(runs: list[Run]) -> plots.Plot | None:
    """ε spent, one line per plan, against its target and the planned end.

    Runs with the same plan spend ε alike, so the one that went furthest represents them.
    """
    groups = grouped([run for run in runs if run.curve("privacy/epsilon")], _plan)
    if not groups:
        return None
    furthest = [max(members, key=lambda run: run.curve("privacy/epsilon")[-1]) for members in groups.values()]
    shown = thinned(sorted(furthest, key=lambda run: run.target_epsilon or math.inf), MAX_SERIES)
    names = [_target_name(run) for run in shown]
    if len(set(names)) < len(names):
        names = [_plan(run) for run in shown]
    notes = ["Dotted lines are the targets, with a ring where the plan ends."]
    notes += [f"{len(shown)} of {len(groups)} plans are shown."] if len(groups) > len(shown) else []
    plot = plots.Plot(
        key="epsilon-steps",
        title="ε over training",
        unit="ε spent",
        summary=f"ε spent over the training steps against the target, {counted(len(shown), 'plan')}.",
        layout={"xaxis": plots.axis("step", rangemode="tozero"), "yaxis": {"rangemode": "tozero"}},
        notes=notes,
    )
    for index, (name, run) in enumerate(zip(names, shown, strict=True)):
        entry = plots.Entry(f"s{index}", name, plots.numbered(index))
        points = thinned(run.curve("privacy/epsilon"), POINTS)
        texts = [f"{name}\nstep {step:g}: ε = {rounded_up(value)}" for step, value in points]
        traces = [plots.trace(points, texts, entry), *_target(run, points[-1][0], entry)]
        plot.add(entry, traces, [f"{_plan(run)}:", *thinned(texts, ROWS)])
    return plot if len(runs) > 1 else replace(plot, legend=[])


def _plan(run: Run) -> str:
    sigma = "" if run.noise_multiplier is None else f", σ = {run.noise_multiplier:.4g}"
    return f"{_target_name(run)}{sigma}, {_steps(run)}"


def _steps(run: Run) -> str:
    return f"{run.planned_steps or '?'} steps"


def _target_name(run: Run) -> str:
    name = "no target" if run.target_epsilon is None else f"ε = {run.target_epsilon:g}"
    return f"{name}, not private" if run.not_private else name


def _target(run: Run, last: float, entry: plots.Entry) -> list[plots.Trace]:
    target, color = run.target_epsilon, entry.style.color
    if target is None:
        return []
    ends = [(0.0, target), (float(run.planned_steps or last), target)]
    # Only the end of the plan has a marker.
    marker = {"color": color, "symbol": "circle-open", "size": 9, "opacity": [0, 1]}
    line = {"color": color, "dash": "dot", "width": 1}
    return [plots.trace(ends, [f"target ε = {target:g}"] * 2, entry, mode="lines+markers", marker=marker, line=line)]
