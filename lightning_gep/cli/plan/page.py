"""Plans as one HTML page: two plots and a table."""

import math
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.cli.plan.costs import NoisePlan
from lightning_gep.cli.plan.output import cells, differing_figures, figures, notes, search_in_words, shared_figures
from lightning_gep.cli.plan.search import Search, tracked
from lightning_gep.privacy.files import write_text
from lightning_gep.reporting.groups import grouped
from lightning_gep.reporting.pages import page as html_page
from lightning_gep.reporting.plots import Entry, Plot, Style, axis, numbered, trace

MAX_CURVES = 8


def write_page(path: Path, plans: Sequence[NoisePlan], searches: Sequence[Search]) -> None:
    """Write the page of these plans; the first plot shows every candidate of the searches."""
    searched = [row for found in searches for row in found.grid]
    plots = [noise_by_batch_size(searched or plans, plans if searched else ()), epsilon_over_steps(plans)]
    drawn = [plot for plot in plots if plot.traces]
    several = len(plans) > 1
    names = differing_figures(plans)
    text = html_page(
        "plan.html",
        command="gep-plan",
        title="Noise before training",
        plots=drawn,
        navigation=[*((f"plot-{plot.key}-title", plot.title) for plot in drawn), ("rows", "All rows")],
        figures=plots,
        common=shared_figures(plans) if several else "",
        words=[line for found in searches for line in search_in_words(found)] + notes(plans),
        values={} if several else figures(plans[0]),
        columns=names,
        rows=[cells(plan, names, plans) for plan in plans],
    )
    write_text(path, text)


def noise_by_batch_size(plans: Sequence[NoisePlan], marked: Sequence[NoisePlan] = ()) -> Plot:
    """Noise per step by batch size, a line per mechanism and number of epochs; `marked` plans are stars."""
    noisy = sorted((plan for plan in plans if plan.noise_per_step > 0), key=lambda plan: plan.size.batch_size)
    lines = grouped(noisy, _name)
    entries = [Entry(name, name, numbered(place)) for place, name in enumerate(lines)]
    if marked:
        lines["calibrated"] = list(marked)
        entries.append(Entry("calibrated", "calibrated", Style("@text", "star", "")))
    sizes = sorted({plan.size.expected_batch_size for plan in noisy})
    stars = "Lines: all candidates, by the RDP bound. Stars: calibrated by the accountant. " if marked else ""
    plot = Plot(
        key="noise",
        title="Noise per step by batch size",
        unit="noise per step, in units of the gradient",
        summary=f"Noise per step against the expected batch size, {len(entries)} lines.",
        layout={
            "xaxis": axis("expected batch size", type="log", tickvals=sizes, ticktext=[str(size) for size in sizes]),
            "yaxis": {"type": "log", "tickformat": ".3~g", "nticks": 6},
        },
        notes=[f"{stars}Both axes are logarithmic."],
        wide=True,
        height=380,
    )
    for entry in entries:
        members = lines[entry.label]
        points = [(float(plan.size.expected_batch_size), plan.noise_per_step) for plan in members]
        texts = [
            f"{_name(plan)}, {plan.size.steps} steps\nbatch {batch:g}: noise {noise:.4g}"
            for plan, (batch, noise) in zip(members, points, strict=True)
        ]
        plot.add(entry, [trace(points, texts, entry, mode="lines+markers" if entry.style.dash else "markers")])
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
    for entry in tracked(entries, "ε over the run"):
        points = [(0.0, 0.0), *((float(at), epsilon) for at, epsilon in curves[entry.label][0].epsilon_over_steps())]
        texts = [f"{entry.label}\nstep {steps:g}: ε {epsilon:.3f}" for steps, epsilon in points]
        plot.add(entry, [trace(points, texts, entry)])
    return plot


def _name(plan: NoisePlan) -> str:
    """What the plans of a line have in common."""
    hidden = ("mechanism", "data.batch_size", "trainer.max_epochs")
    others = (f", {key.rpartition('.')[2]} {value}" for key, value in plan.labels.items() if key not in hidden)
    return f"{plan.mechanism}, {plan.size.epochs:.4g} epochs{''.join(others)}"


def _sampling(plan: NoisePlan) -> str:
    noise = f"σ {plan.plan.event.noise_multiplier:.3g}"
    return f"batch {plan.size.expected_batch_size}, {plan.size.epochs:.4g} epochs, {noise}"
