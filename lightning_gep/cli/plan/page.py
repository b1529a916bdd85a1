"""Plans as one HTML page: two plots and a table."""

import math
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.cli.plan.costs import NoisePlan
from lightning_gep.cli.plan.output import differing_figures, figures, notes, rows, shared_figures
from lightning_gep.privacy.files import write_text
from lightning_gep.reporting.groups import grouped
from lightning_gep.reporting.pages import plots_page
from lightning_gep.reporting.plots import Entry, Plot, Table, axis, numbered, trace
from lightning_gep.reporting.text import NOTHING

MAX_CURVES = 8


def write_page(path: Path, plans: Sequence[NoisePlan]) -> None:
    """Write the page of these plans."""
    if len(plans) > 1:
        names, words = differing_figures(plans), [shared_figures(plans)]
        table = Table(names, rows(plans, names))
    else:
        words = []
        table = Table(["figure", "value"], [[*each] for each in figures(plans[0]).items() if each[1] != NOTHING])
    plots = [noise_by_batch_size(plans), epsilon_over_steps(plans)]
    title = "Noise before training"
    write_text(path, plots_page("gep-plan", title, plots, "All rows", table, words=[*words, *notes(plans)]))


def noise_by_batch_size(plans: Sequence[NoisePlan]) -> Plot:
    """Noise per step by batch size, a line per mechanism and number of epochs."""
    noisy = sorted((plan for plan in plans if plan.noise_per_step > 0), key=lambda plan: plan.size.batch_size)
    lines = grouped(noisy, _name)
    sizes = sorted({plan.size.expected_batch_size for plan in noisy})
    plot = Plot(
        key="noise",
        title="Noise per step by batch size",
        unit="noise per step, in units of the gradient",
        summary=f"Noise per step against the expected batch size, {len(lines)} lines.",
        layout={
            "xaxis": axis("expected batch size", type="log", tickvals=sizes, ticktext=[str(size) for size in sizes]),
            "yaxis": {"type": "log", "tickformat": ".3~g", "nticks": 6},
        },
        notes=["Both axes are logarithmic."],
        wide=True,
        height=380,
    )
    for place, (name, members) in enumerate(lines.items()):
        entry = Entry(name, name, numbered(place))
        points = [(float(plan.size.expected_batch_size), plan.noise_per_step) for plan in members]
        texts = [
            f"{name}, {plan.size.steps} steps\nbatch {batch:g}: noise {noise:.4g}"
            for plan, (batch, noise) in zip(members, points, strict=True)
        ]
        plot.add(entry, [trace(points, texts, entry, mode="lines+markers")], texts)
    return plot


def epsilon_over_steps(plans: Sequence[NoisePlan]) -> Plot:
    """ε over the steps of a run, once for all plans that share it: it does not depend on the mechanism."""
    curves = grouped([plan for plan in plans if math.isfinite(plan.epsilon)], _sampling)
    entries = [Entry(name, name, numbered(place)) for place, name in enumerate(list(curves)[:MAX_CURVES])]
    plot = Plot(
        key="epsilon",
        title="ε over the steps of a run",
        unit="ε, the same for every mechanism",
        summary=f"ε over the steps of a run, {len(entries)} curves.",
        layout={"xaxis": axis("steps", rangemode="tozero"), "yaxis": {"rangemode": "tozero"}},
        notes=[f"The first {len(entries)} of {len(curves)} curves."] if len(entries) < len(curves) else [],
    )
    for entry in entries:
        points = [(0.0, 0.0), *((float(at), epsilon) for at, epsilon in curves[entry.label][0].epsilon_over_steps())]
        texts = [f"{entry.label}\nstep {steps:g}: ε {epsilon:.3f}" for steps, epsilon in points]
        plot.add(entry, [trace(points, texts, entry)], texts)
    return plot


def _name(plan: NoisePlan) -> str:
    """What the plans of a line have in common."""
    hidden = ("mechanism", "data.batch_size", "trainer.max_epochs")
    others = (f", {key.rpartition('.')[2]} {value}" for key, value in plan.labels.items() if key not in hidden)
    return f"{plan.mechanism}, {plan.size.epochs:.4g} epochs{''.join(others)}"


def _sampling(plan: NoisePlan) -> str:
    noise = f"σ {plan.plan.event.noise_multiplier:.3g}"
    return f"batch {plan.size.expected_batch_size}, {plan.size.epochs:.4g} epochs, {noise}"
