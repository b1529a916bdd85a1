"""ε over training, against its target and against the plan."""

import math

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import EpsilonCurve, SampledGaussian
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.curves import POINTS, ROWS
from lightning_gep.reporting.grouping import MOST_SERIES, grouped, thinned
from lightning_gep.reporting.load import Run
from lightning_gep.reporting.plot import COLOURS, DASHES, Entry, Plot, Style, Table, Trace, trace
from lightning_gep.reporting.text import counted

PLANS = 4
"""Planned curves to compute at most: each asks the accountant for a second or two."""

HINT = "ε over training needs privacy/epsilon: keep the PrivacyMonitor callback, and write a table with logger=csv."


def epsilon_over_training(runs: list[Run]) -> Plot | None:
    """ε as it was spent, a line per plan, against its target; where a plan is not at its end, also the planned curve.

    Runs with the same plan spend ε alike, so the one that went furthest stands for them.
    """
    groups = grouped([run for run in runs if run.curve("privacy/epsilon")], _plan)
    if not groups:
        return None
    furthest = [max(members, key=lambda run: run.curve("privacy/epsilon")[-1]) for members in groups.values()]
    shown = thinned(sorted(furthest, key=lambda run: run.target_epsilon or math.inf), MOST_SERIES)
    names = plan_names(shown)
    traces: list[Trace] = []
    legend, rows, computed = [], [], 0
    for index, (name, run) in enumerate(zip(names, shown, strict=True)):
        group = f"s{index}"
        style = Style(f"@{index % COLOURS + 1}", dash=DASHES[index // COLOURS % len(DASHES)])
        points = run.curve("privacy/epsilon")
        traces += [_line(thinned(points, POINTS), name, group, style), *_target(run, points[-1][0], group, style)]
        planned = planned_curve(run) if computed < PLANS and not run.finished else []
        if planned:
            computed += 1
            traces.append(_line(planned, f"{name}, planned", group, Style(f"{style.colour}/0.6", dash="dash")))
        legend.append(Entry(group, name, style.as_line))
        rows += [[name, f"{step:g}", rounded_up(value), _target_text(run)] for step, value in thinned(points, ROWS)]
    notes = ["Dotted lines are the targets, with a ring where the plan ends."]
    notes += ["Dashed lines are the planned ε where no run has come to its end."] if computed else []
    notes += [f"{len(shown)} of {len(groups)} plans are shown."] if len(groups) > len(shown) else []
    return Plot(
        key="epsilon-steps",
        title="ε over training",
        unit="ε spent",
        summary=f"ε spent over the training steps against the target, {counted(len(shown), 'plan')}.",
        traces=traces,
        layout={"xaxis": {"title": {"text": "step"}, "rangemode": "tozero"}, "yaxis": {"rangemode": "tozero"}},
        legend=legend if len(runs) > 1 else [],
        table=Table(["Plan", "Step", "ε spent", "Target"], rows),
        notes=notes,
    )


def planned_curve(run: Run) -> list[tuple[float, float]]:
    """ε at a few numbers of steps as the accountant plans it; nothing where the run did not say its noise."""
    sigma, rate, delta, steps = run.noise_multiplier, run.sample_rate, run.delta, run.planned_steps
    # PRV takes many times as long.
    if not (sigma and rate and delta and steps) or run.accountant not in ("pld", "rdp"):
        return []
    try:
        curve = EpsilonCurve(SampledGaussian(rate, sigma), delta, run.accountant, steps)
        points = [(float(place), curve(place)) for place in (round(steps * index / 20) for index in range(21))]
    except ConfigurationError:  # a number on disk that no run could have had
        return []
    return [point for point in points if math.isfinite(point[1])]


def plan_names(runs: list[Run]) -> list[str]:
    """`ε = 2`, with noise and steps where two plans have the same target."""
    short = [_target_name(run) for run in runs]
    return short if len(set(short)) == len(short) else [_plan(run) for run in runs]


def _plan(run: Run) -> str:
    sigma = "" if run.noise_multiplier is None else f", σ = {run.noise_multiplier:.4g}"
    steps = "" if run.planned_steps is None else f", {counted(run.planned_steps, 'step')}"
    return f"{_target_name(run)}{sigma}{steps}"


def _target_name(run: Run) -> str:
    name = "no target" if run.target_epsilon is None else f"ε = {run.target_epsilon:g}"
    return f"{name}, not private" if run.not_private else name


def _target_text(run: Run) -> str:
    return "none" if run.target_epsilon is None else f"{run.target_epsilon:g} after {run.planned_steps or '?'} steps"


def _line(points: list[tuple[float, float]], name: str, group: str, style: Style) -> Trace:
    texts = [f"{name}\nstep {step:g}: ε = {rounded_up(value)}" for step, value in points]
    mode = "lines" if len(points) > 1 else "markers"
    return trace([p[0] for p in points], [p[1] for p in points], texts, group=group, style=style, mode=mode)


def _target(run: Run, last: float, group: str, style: Style) -> list[Trace]:
    if run.target_epsilon is None:
        return []
    x, y = [0.0, float(run.planned_steps or last)], [run.target_epsilon] * 2
    text = f"target ε = {run.target_epsilon:g}"
    # Only the end of the plan has a mark.
    marks = {"color": style.colour, "symbol": "circle-open", "size": 9, "opacity": [0, 1]}
    line = {"color": style.colour, "dash": "dot", "width": 1}
    return [trace(x, y, [text] * 2, group=group, style=style, mode="lines+markers", marker=marks, line=line)]
