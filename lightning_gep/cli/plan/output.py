"""Plans for people: a table for the terminal, and sentences about it. Values that all rows share are printed once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lightning_gep.cli.plan.costs import NoisePlan
from lightning_gep.cli.plan.search import Search
from lightning_gep.privacy.rounding import rounded_up

PER_STEP, OF_MEAN = "noise per step", "noise of the mean over the run"
FIGURES: dict[str, Callable[[NoisePlan], float]] = {
    PER_STEP: lambda plan: plan.noise_per_step,
    OF_MEAN: lambda plan: plan.noise_of_mean,
}
QUARTERS = (("a quarter", "¼"), ("half", "½"), ("three quarters", "¾"))
HAVE_A_COLUMN = {
    "mechanism",
    "mechanism.k",
    "data.batch_size",
    "trainer.max_epochs",
    "trainer.max_steps",
    "privacy.epsilon",
    "privacy.delta",
    "privacy.noise_multiplier",
}


@dataclass(frozen=True)
class Column:
    """One figure of a plan: its name in words, a short head for narrow tables, and its text."""

    name: str
    head: str
    text: Callable[[NoisePlan], str]
    detail: bool = False
    """Left out if the terminal is too narrow."""


def columns(plans: Sequence[NoisePlan]) -> list[Column]:
    """All columns that apply to these plans."""
    given_noise = any(plan.plan.target_epsilon is None for plan in plans)
    by_rdp = [Column("ε by RDP", "ε RDP", lambda plan: rounded_up(plan.epsilon_by_rdp), detail=True)]
    during = [
        Column(f"ε after {words} of the run", f"ε {sign}", _at_quarter(number))
        for number, (words, sign) in enumerate(QUARTERS)
    ]
    swept = dict.fromkeys(key for plan in plans for key in plan.labels if key not in HAVE_A_COLUMN)
    return [
        Column("mechanism", "mech.", lambda plan: plan.mechanism),
        *(_label(key) for key in swept),
        Column("batch size", "batch", lambda plan: f"{plan.size.expected_batch_size}"),
        Column("epochs", "epochs", lambda plan: f"{plan.size.epochs:.4g}"),
        Column("steps", "steps", lambda plan: f"{plan.steps}"),
        Column("sampling rate q", "q", lambda plan: f"{plan.plan.sample_rate:.3g}", detail=True),
        Column("basis vectors k", "k", lambda plan: "–" if plan.k is None else f"{plan.k}", detail=True),
        Column("ε", "ε", lambda plan: rounded_up(plan.epsilon)),
        Column("δ", "δ", lambda plan: f"{plan.plan.delta:g}", detail=True),
        *(by_rdp if given_noise or len(plans) == 1 else []),
        *(during if given_noise else []),
        Column("σ of a step", "σ", lambda plan: _digits(plan.plan.event.noise_multiplier)),
        Column("σ₁ (embedding)", "σ₁", lambda plan: _sigma(plan, "embedding"), detail=True),
        Column("σ₂ (residual)", "σ₂", lambda plan: _sigma(plan, "residual"), detail=True),
        Column("embedding : residual", "emb:res\n%", _shares, detail=True),
        Column(PER_STEP, "noise\nper step", lambda plan: _digits(plan.noise_per_step)),
        Column(OF_MEAN, "noise\nof mean", lambda plan: _digits(plan.noise_of_mean)),
    ]


def plan_table(
    plans: Sequence[NoisePlan], console: Console, among: Sequence[NoisePlan] | None = None
) -> RenderableType:
    """One plan as a list of names and values; several as rows, with the least noise of each kind marked.

    `among` are the plans that the rows were chosen from: their least is marked, and the values that they share are left
    to the caller. Columns that do not fit the terminal are left out and listed below.
    """
    if len(plans) == 1 and among is None:
        table = Table(show_header=False, title="gep-plan", title_justify="left")
        for name, text in values_of(plans[0]).items():
            table.add_row(name, text)
        return table
    compared = plans if among is None else among
    constant = {column.name for column in constant_columns(compared)}
    shown = [column for column in columns(compared) if column.name not in constant]
    table = _rows(plans, shown, compared)
    details = [column.name for column in shown if column.detail]
    too_wide = _width(table, console) > console.width
    if too_wide:
        table = _rows(plans, [column for column in shown if not column.detail], compared)
    parts: list[RenderableType] = [table]
    if among is None:
        parts.insert(0, Text(f"The same for all: {common_values(plans)}.\n", style="dim"))
    if too_wide and details:
        parts.append(Text(f"Left out for lack of room: {', '.join(details)}.", style="dim"))
    return Group(*parts)


def constant_columns(plans: Sequence[NoisePlan]) -> list[Column]:
    """The columns that have the same text for all plans."""
    return [column for column in columns(plans) if len({column.text(plan) for plan in plans}) == 1]


def common_values(plans: Sequence[NoisePlan]) -> str:
    """Everything that is the same for all plans, in one line."""
    values = [
        ("N = ", {f"{plan.size.num_records}" for plan in plans}),
        ("p = ", {f"{plan.size.num_parameters}" for plan in plans}),
        ("", {_thresholds(plan) for plan in plans}),
        *((f"{c.name.removeprefix('basis vectors ')} = ", {c.text(plans[0])}) for c in constant_columns(plans)),
        ("accountant = ", {plan.plan.accountant for plan in plans}),
    ]
    return ", ".join(name + min(texts) for name, texts in values if len(texts) == 1 and texts != {"–"})


def is_least(plan: NoisePlan, column: Column, compared: Sequence[NoisePlan]) -> bool:
    """Whether the plan has the least noise in a column of noise. One without noise, so without privacy, never has."""
    figure = FIGURES.get(column.name)
    if figure is None or figure(plan) == 0 or len(compared) < 2:
        return False
    return figure(plan) == min(figure(other) for other in compared if figure(other) > 0)


def values_of(plan: NoisePlan) -> dict[str, str]:
    """Everything about one plan, by name."""
    sizes = {
        "training records N": f"{plan.size.num_records}",
        "parameters p": f"{plan.size.num_parameters}",
        "thresholds": _thresholds(plan),
        "accountant": plan.plan.accountant,
    }
    figures = {column.name: column.text(plan) for column in columns([plan])}
    return {**sizes, **{name: text for name, text in figures.items() if text != "–"}}


def search_in_words(found: Search) -> list[str]:
    """What was searched; then for both criteria the best, whether it is at an edge of the search, and a cheaper one."""
    first = found.per_step[0]
    plan = first.plan
    others = "".join(f", {key}={value}" for key, value in first.labels.items() if key != "mechanism")
    left_out = f" ({found.too_short} with fewer steps left out)" if found.too_short else ""
    return [
        f"{first.mechanism} at ε = {plan.target_epsilon:g}, δ = {plan.delta:g}{others}: {len(found.grid)} candidates"
        f"{left_out} by the RDP bound, the best of them by {plan.accountant}.",
        _best(PER_STEP, first, found.cheapest_per_step, found),
        _best(OF_MEAN, found.over_run[0], found.cheapest_over_run, found),
    ]


def why_min_steps(min_steps: int) -> str:
    """Why noise alone cannot choose the number of steps."""
    return (
        "Larger batches and shorter runs always have less noise per step: without --min-steps the answer would be one "
        "step on all records, which learns nothing. The noise of the mean falls with batch size and epochs, down to "
        "the noise of that one step. Noise cannot tell how many steps a model needs: "
        f"--min-steps {min_steps} is your choice."
    )


def notes(plans: Sequence[NoisePlan]) -> list[str]:
    """How to read these rows."""
    single = sorted({plan.mechanism for plan in plans if plan.release.embedding is None})
    gradient = f" ({', '.join(single)}: √p·S·σ/n̄)" if single else ""
    least = " ★ marks the least." if len(plans) > 1 else ""
    found = [f"Noise per step = √(k(S₁σ₁)² + p(S₂σ₂)²)/n̄{gradient}; of the mean over the run: that/√steps.{least}"]
    if len({(plan.mechanism, plan.k, *(part.clip for part in plan.release.parts)) for plan in plans}) > 1:
        found.append(
            "Mechanism, k and thresholds also decide how much of the gradient is clipped, or left out (bgep): there, "
            "less noise is not always better."
        )
    if any(plan.plan.event.noise_multiplier == 0 for plan in plans):
        found.append("Rows without noise (ε = ∞) are NOT private.")
    elif not all(plan.private for plan in plans):
        found.append("privacy.generator=seeded makes draws repeatable: such a run is NOT private, whatever its ε.")
    return found


def _best(criterion: str, best: NoisePlan, cheap: NoisePlan, found: Search) -> str:
    figure = FIGURES[criterion]
    line = f"Least {criterion}: {_run(best)}, {figure(best):.4g}{_edge(best, found)}."
    if cheap.records_read < best.records_read:
        share = cheap.records_read / best.records_read
        line += f" With {share:.0%} of the computing: {_run(cheap)}, {figure(cheap):.4g}."
    return line


def _run(plan: NoisePlan) -> str:
    return f"batch size {plan.size.expected_batch_size}, {plan.size.epochs:.4g} epochs ({plan.steps} steps)"


def _edge(plan: NoisePlan, found: Search) -> str:
    """Whether a wider search could find something better."""
    sizes = {row.size.batch_size for row in found.grid}
    epochs = {row.size.max_epochs or 0 for row in found.grid}
    edges = ["largest batch size"] if len(sizes) > 1 and plan.size.batch_size == max(sizes) else []
    edges += ["most epochs"] if len(epochs) > 1 and plan.size.max_epochs == max(epochs) else []
    return f" (at the edge of the search: {', '.join(edges)})" if edges else ""


def _rows(plans: Sequence[NoisePlan], shown: Sequence[Column], compared: Sequence[NoisePlan]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
    for column in shown:
        table.add_column(column.head, justify="left" if column.name == "mechanism" else "right", no_wrap=True)
    for plan in plans:
        table.add_row(
            *(
                Text(f"★ {column.text(plan)}", style="bold green")
                if is_least(plan, column, compared)
                else Text(column.text(plan))
                for column in shown
            )
        )
    return table


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(max_width=1000), table).maximum


def _label(key: str) -> Column:
    return Column(key, key.replace(".", ".\n"), lambda plan: plan.labels.get(key, "–"))


def _at_quarter(number: int) -> Callable[[NoisePlan], str]:
    def text(plan: NoisePlan) -> str:
        return "–" if plan.plan.target_epsilon is not None else rounded_up(plan.epsilon_at_quarters()[number][1])

    return text


def _sigma(plan: NoisePlan, part: str) -> str:
    found = getattr(plan.release, part)
    return "–" if found is None or plan.k is None else _digits(found.sigma)


def _shares(plan: NoisePlan) -> str:
    if plan.release.embedding is None or plan.release.residual is None or math.isnan(plan.embedding_share):
        return "–"
    embedding = round(100 * plan.embedding_share)
    return f"{embedding}:{100 - embedding}"


def _thresholds(plan: NoisePlan) -> str:
    embedding, residual = plan.release.embedding, plan.release.residual
    parts = [("S₁", embedding), ("S₂", residual)] if plan.k is not None else [("S", residual)]
    return ", ".join(f"{name} = {part.clip:g}" for name, part in parts if part is not None)


def _digits(value: float) -> str:
    return f"{value:#.4g}".rstrip(".") if value else "0"
