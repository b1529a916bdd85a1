"""Plans as one HTML page: three plots and a table."""

import math
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.cli.plan.costs import NoisePlan
from lightning_gep.cli.plan.output import (
    columns,
    common_values,
    constant_columns,
    is_least,
    notes,
    search_in_words,
    values_of,
)
from lightning_gep.cli.plan.search import Search, Tick
from lightning_gep.reporting.pages import page as html_page
from lightning_gep.reporting.plots import SYMBOLS, Entry, Plot, Style, axis, numbered, trace

MAX_CURVES, MAX_BARS = 8, 16
DASHES = {"gep": "solid", "bgep": "dot", "gp": "dash", "spectral": "dashdot"}
# Columns that come after the noise, so that a narrow screen shows the noise first.
LATER = ("sampling rate q", "basis vectors k", "σ of a step", "σ₁ (embedding)", "σ₂ (residual)", "embedding : residual")


def write_page(path: Path, plans: Sequence[NoisePlan], searches: Sequence[Search], tick: Tick) -> None:
    """Write the page of these plans; the first plot shows every candidate of the searches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(plans, searches, tick), "utf-8", newline="\n")


def page(plans: Sequence[NoisePlan], searches: Sequence[Search], tick: Tick) -> str:
    """The page as text."""
    searched = [row for found in searches for row in found.grid]
    plots = [noise_by_batch_size(searched or plans, plans if searched else ())]
    plots += [epsilon_over_steps(plans, tick), noise_split(plans)]
    constant = {column.name for column in constant_columns(plans)} if len(plans) > 1 else set()
    shown = sorted((c for c in columns(plans) if c.name not in constant), key=lambda column: column.name in LATER)
    return html_page(
        "plan.html",
        command="gep-plan",
        title="Noise before training",
        plots=[plot for plot in plots if plot.traces],
        navigation=[(f"plot-{plot.key}-title", plot.title) for plot in plots if plot.traces] + [("rows", "All rows")],
        figures=plots,
        common=common_values(plans) if len(plans) > 1 else "",
        words=[line for found in searches for line in search_in_words(found)] + notes(plans),
        values=values_of(plans[0]) if len(plans) == 1 else {},
        columns=[column.name for column in shown],
        rows=[[(column.text(plan), is_least(plan, column, plans)) for column in shown] for plan in plans],
    )


def noise_by_batch_size(plans: Sequence[NoisePlan], marked: Sequence[NoisePlan] = ()) -> Plot:
    """Noise per step by batch size, a line per mechanism and number of epochs; `marked` plans are stars."""
    noisy = [plan for plan in plans if plan.noise_per_step > 0]
    epochs = sorted({plan.size.epochs for plan in noisy})
    lines: dict[str, tuple[Style, list[NoisePlan]]] = {}
    for plan in noisy:
        color = numbered(epochs.index(plan.size.epochs)).color
        style = Style(color, SYMBOLS[plan.mechanism], DASHES[plan.mechanism])
        lines.setdefault(_name(plan), (style, []))[1].append(plan)
    if marked:
        lines["calibrated"] = (Style("@text", "star", ""), [plan for plan in marked if plan.noise_per_step > 0])
    traces = []
    for name, (style, members) in lines.items():
        members = sorted(members, key=lambda plan: plan.size.expected_batch_size)
        points = [(float(plan.size.expected_batch_size), plan.noise_per_step) for plan in members]
        texts = [
            f"{_name(plan)}, {plan.steps} steps\nbatch {plan.size.expected_batch_size}: noise {plan.noise_per_step:.4g}"
            for plan in members
        ]
        mode = "lines+markers" if style.dash else "markers"
        traces.append(trace(points, texts, group=name, style=style, mode=mode))
    sizes = sorted({plan.size.expected_batch_size for plan in noisy})
    stars = "Lines: all candidates, by the RDP bound. Stars: calibrated by the accountant. " if marked else ""
    return Plot(
        key="noise",
        title="Noise per step by batch size",
        unit="noise per step, in units of the gradient",
        summary=f"Noise per step against the expected batch size, {len(traces)} lines.",
        traces=traces,
        layout={
            "xaxis": axis("expected batch size", type="log", tickvals=sizes, ticktext=[str(size) for size in sizes]),
            "yaxis": {"type": "log", "tickformat": ".3~g", "nticks": 6},
        },
        legend=[Entry(name, name, style) for name, (style, _) in lines.items()],
        notes=[f"{stars}Both axes are logarithmic."],
        wide=True,
        height=380,
    )


def epsilon_over_steps(plans: Sequence[NoisePlan], tick: Tick) -> Plot:
    """ε over the steps of a run, once for all plans that share it: it does not depend on the mechanism."""
    curves: dict[tuple[object, ...], NoisePlan] = {}
    for plan in plans:
        if math.isfinite(plan.epsilon):
            # GEP's σ is computed from its two parts, so it equals GP's only up to rounding.
            sigma = f"{plan.plan.event.noise_multiplier:.9g}"
            shared = plan.plan.sample_rate, sigma, plan.plan.delta, plan.plan.accountant, plan.steps
            curves.setdefault(shared, plan)
    shown = list(curves.values())[:MAX_CURVES]
    traces, legend = [], []
    for index, plan in enumerate(shown):
        tick("ε over the run", index, len(shown))
        noise = f"σ {plan.plan.event.noise_multiplier:.3g}"
        name = f"batch {plan.size.expected_batch_size}, {plan.size.epochs:.4g} epochs, {noise}"
        points = [(0.0, 0.0), *((float(steps), epsilon) for steps, epsilon in plan.epsilon_over_steps())]
        texts = [f"{name}\nstep {steps:g}: ε {epsilon:.3f}" for steps, epsilon in points]
        traces.append(trace(points, texts, group=name, style=numbered(index)))
        legend.append(Entry(name, name, numbered(index)))
    return Plot(
        key="epsilon",
        title="ε over the steps of a run",
        unit="ε, the same for every mechanism",
        summary=f"ε over the steps of a run, {len(shown)} curves.",
        traces=traces,
        layout={"xaxis": axis("steps", rangemode="tozero"), "yaxis": {"rangemode": "tozero"}},
        legend=legend,
        notes=_first(len(shown), len(curves), "curves"),
    )


def noise_split(plans: Sequence[NoisePlan]) -> Plot:
    """A bar as long as the noise per step of each plan, split by energy; GP's gradient counts as residual."""
    noisy = [plan for plan in plans if plan.noise_per_step > 0]
    shown = noisy[:MAX_BARS]
    traces, legend = [], []
    for index, part in enumerate(("embedding", "residual (gp: gradient)") if shown else ()):
        style = Style(numbered(index).color, "bar", "")
        shares = [1 - plan.embedding_share if index else plan.embedding_share for plan in shown]
        points = [(share * shown[row].noise_per_step, row) for row, share in enumerate(shares)]
        texts = [f"{share:.0%} of the noise energy" for share in shares]
        bar = {"type": "bar", "orientation": "h", "textposition": "none", "marker": {"color": style.color}}
        traces.append({**trace(points, texts, group=part, style=style), **bar})
        legend.append(Entry(part, part, style))
    names = [f"{plan.mechanism} {plan.size.expected_batch_size} × {plan.steps}{_others(plan)}" for plan in shown]
    vertical = {"tickvals": list(range(len(shown))), "ticktext": names, "range": [len(shown) - 0.5, -0.5]}
    return Plot(
        key="split",
        title="Noise of embedding and residual",
        unit="mechanism, batch size × steps",
        summary=f"Noise per step, split into embedding and residual, {len(shown)} plans.",
        traces=traces,
        layout={
            "xaxis": axis("noise per step", rangemode="tozero", nticks=6),
            "yaxis": vertical,
            "barmode": "stack",
            "bargap": 0.3,
        },
        legend=legend,
        notes=["The colors divide the energy of the noise.", *_first(len(shown), len(noisy), "rows")],
        height=110 + 30 * len(shown),
    )


def _name(plan: NoisePlan) -> str:
    """What the plans of a line have in common."""
    return f"{plan.mechanism}, {plan.size.epochs:.4g} epochs{_others(plan)}"


def _others(plan: NoisePlan) -> str:
    hidden = ("mechanism", "data.batch_size", "trainer.max_epochs")
    return "".join(f", {key.rpartition('.')[2]} {value}" for key, value in plan.labels.items() if key not in hidden)


def _first(shown: int, total: int, what: str) -> list[str]:
    return [f"The first {shown} of {total} {what}."] if shown < total else []
