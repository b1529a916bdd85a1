"""Curves over the training steps: validation accuracy, speed, ε against its plan, and nonprivate diagnostics."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import EpsilonCurve, SampledGaussian
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting import plots
from lightning_gep.reporting.groups import MAX_SERIES, Settings, at_most, grouped, mean_curve, thinned
from lightning_gep.reporting.runs import Run
from lightning_gep.reporting.text import counted, with_spread

POINTS, ROWS = 100, 15
"""Points of a curve in the plot, and in its table."""

MAX_SINGLE_RUNS = 10
"""Up to this many runs get a curve each; more are averaged."""

MAX_PLANS = 4
"""Planned curves to compute; each takes the accountant a second or two."""

LEARNING_HINT = "Learning curves need val/accuracy: log it in validation_step, and write a table with logger=csv."
SPENDING_HINT = (
    "ε over training needs privacy/epsilon: keep the PrivacyMonitor callback, and write a table with logger=csv."
)
POOLED_NOTE = "Too many runs for a line each: runs whose k, ε or other settings the legend does not name share a line."


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


def throughput(run: Run) -> Quantity | None:
    """The logged speed of one run."""
    for name, unit in [("records_per_second", "records per second"), ("steps_per_second", "steps per second")]:
        if len(run.curve(f"performance/{name}")) > 1:
            return Quantity("throughput", f"performance/{name}", "Speed", unit)
    return None


def over_steps(quantity: Quantity, runs: list[Run], settings: Settings) -> plots.Plot | None:
    """A line per run, or per group of runs with its standard deviation; None if the quantity was not logged."""
    runs = [run for run in runs if run.curve(quantity.logged)]
    if not runs:
        return None
    single = len(runs) <= MAX_SINGLE_RUNS
    keys: list[Callable[[Run], str]] = [
        lambda run: settings.name(run, data=True, epsilon=True),
        lambda run: settings.name(run, data=True, epsilon=True, others=False),
        lambda run: settings.name(run, data=True, epsilon=True, others=False, k=False),
        lambda run: settings.name(run, data=True, others=False),
        lambda run: settings.name(run, data=True, others=False, k=False),
    ]
    groups, pooled = (grouped(runs, lambda run: run.place or run.job), False) if single else at_most(runs, keys)
    banded = not single and len(groups) <= plots.COLORS
    looks = plots.styles(groups)
    traces: list[plots.Trace] = []
    legend, rows = [], []
    for index, (name, members) in enumerate(groups.items()):
        group, style = f"s{index}", replace(looks[name], symbol="")
        label = members[0].job if single else name
        points = mean_curve((run.curve(quantity.logged) for run in members), quantity.scale)
        shown = thinned(points, POINTS)
        texts = [f"{label}\nstep {p.step:g}: {with_spread(p.mean, p.deviation, 3)}" for p in shown]
        traces += [plots.band(shown, group=group, style=style)] if banded else []
        traces.append(plots.trace([(p.step, p.mean) for p in shown], texts, group=group, style=style))
        legend.append(plots.Entry(group, label, style))
        rows += [
            [label, f"{p.step:g}", str(p.runs), with_spread(p.mean, p.deviation, 3)] for p in thinned(points, ROWS)
        ]
    notes = [] if single else [f"Lines are means over runs{', bands one standard deviation' if banded else ''}."]
    in_lines = f"{counted(len(runs), 'run')} in {counted(len(groups), 'line')}"
    return plots.Plot(
        key=quantity.key,
        title=quantity.title,
        unit=quantity.unit,
        summary=f"{quantity.title} over the training steps, {in_lines}.",
        traces=traces,
        layout={
            "xaxis": plots.axis("step", rangemode="tozero"),
            "yaxis": {"type": "log", "dtick": "D2"} if quantity.log else {},
        },
        legend=legend if len(runs) > 1 else [],
        table=plots.Table(["Runs of", "Step", "Runs", quantity.unit], rows),
        notes=[*notes, POOLED_NOTE] if pooled else notes,
    )


def epsilon_over_training(runs: list[Run]) -> plots.Plot | None:
    """ε spent, one line per plan, against its target; and the planned ε if no run of the plan has finished.

    Runs with the same plan spend ε alike, so the one that went furthest represents them.
    """
    groups = grouped([run for run in runs if run.curve("privacy/epsilon")], _plan)
    if not groups:
        return None
    furthest = [max(members, key=lambda run: run.curve("privacy/epsilon")[-1]) for members in groups.values()]
    shown = thinned(sorted(furthest, key=lambda run: run.target_epsilon or math.inf), MAX_SERIES)
    names = plan_names(shown)
    traces: list[plots.Trace] = []
    legend, rows, computed = [], [], 0
    for index, (name, run) in enumerate(zip(names, shown, strict=True)):
        group, style = f"s{index}", plots.numbered(index)
        points = run.curve("privacy/epsilon")
        traces += [_spending(thinned(points, POINTS), name, group, style), *_target(run, points[-1][0], group, style)]
        planned = planned_curve(run) if computed < MAX_PLANS and not run.finished else []
        if planned:
            computed += 1
            traces.append(_spending(planned, f"{name}, planned", group, plots.Style(style.faint(0.6), dash="dash")))
        legend.append(plots.Entry(group, name, style))
        rows += [[name, f"{step:g}", rounded_up(value), _target_text(run)] for step, value in thinned(points, ROWS)]
    notes = ["Dotted lines are the targets, with a ring where the plan ends."]
    notes += ["Dashed lines are the planned ε of plans that no run has finished."] if computed else []
    notes += [f"{len(shown)} of {len(groups)} plans are shown."] if len(groups) > len(shown) else []
    return plots.Plot(
        key="epsilon-steps",
        title="ε over training",
        unit="ε spent",
        summary=f"ε spent over the training steps against the target, {counted(len(shown), 'plan')}.",
        traces=traces,
        layout={"xaxis": plots.axis("step", rangemode="tozero"), "yaxis": {"rangemode": "tozero"}},
        legend=legend if len(runs) > 1 else [],
        table=plots.Table(["Plan", "Step", "ε spent", "Target"], rows),
        notes=notes,
    )


def planned_curve(run: Run) -> list[plots.Pair]:
    """ε at 21 steps as the accountant plans it; empty if the run did not record its noise."""
    sigma, rate, delta, steps = run.noise_multiplier, run.sample_rate, run.delta, run.planned_steps
    # PRV would take many times as long.
    if not (sigma and rate and delta and steps) or run.accountant not in ("pld", "rdp"):
        return []
    try:
        curve = EpsilonCurve(SampledGaussian(rate, sigma), delta, run.accountant, steps)
        points = [(float(place), curve(place)) for place in (round(steps * index / 20) for index in range(21))]
    except ConfigurationError:  # a number on disk that no run could have had
        return []
    return [point for point in points if math.isfinite(point[1])]


def plan_names(runs: list[Run]) -> list[str]:
    """`ε = 2`, with noise and steps if two plans have the same target."""
    names = [_target_name(run) for run in runs]
    return names if len(set(names)) == len(names) else [_plan(run) for run in runs]


def _plan(run: Run) -> str:
    sigma = "" if run.noise_multiplier is None else f", σ = {run.noise_multiplier:.4g}"
    return f"{_target_name(run)}{sigma}, {run.planned_steps or '?'} steps"


def _target_name(run: Run) -> str:
    name = "no target" if run.target_epsilon is None else f"ε = {run.target_epsilon:g}"
    return f"{name}, not private" if run.not_private else name


def _target_text(run: Run) -> str:
    return "none" if run.target_epsilon is None else f"{run.target_epsilon:g} after {run.planned_steps or '?'} steps"


def _spending(points: list[plots.Pair], name: str, group: str, style: plots.Style) -> plots.Trace:
    texts = [f"{name}\nstep {step:g}: ε = {rounded_up(value)}" for step, value in points]
    return plots.trace(points, texts, group=group, style=style)


def _target(run: Run, last: float, group: str, style: plots.Style) -> list[plots.Trace]:
    target = run.target_epsilon
    if target is None:
        return []
    ends = [(0.0, target), (float(run.planned_steps or last), target)]
    # Only the end of the plan has a marker.
    marker = {"color": style.color, "symbol": "circle-open", "size": 9, "opacity": [0, 1]}
    line = {"color": style.color, "dash": "dot", "width": 1}
    texts = [f"target ε = {target:g}"] * 2
    return [plots.trace(ends, texts, group=group, style=style, mode="lines+markers", marker=marker, line=line)]
