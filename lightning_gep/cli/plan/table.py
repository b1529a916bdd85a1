"""Plans as a table for the terminal: what is the same for all of them is said once above it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lightning_gep.cli.plan.costs import NoisePlan
from lightning_gep.privacy.rounding import rounded_up

PER_STEP, OF_MEAN = "noise per step", "noise of the mean over the run"
LEAST = "★"
BLOCKS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 8


@dataclass(frozen=True)
class Column:
    """One figure of a plan: its name in words, a short head for narrow tables, and its text."""

    name: str
    head: str
    text: Callable[[NoisePlan], str]
    dispensable: int = 0
    """Where the terminal is too narrow, columns are left out, the largest number first; 0 always stays."""


def columns(plans: Sequence[NoisePlan]) -> list[Column]:
    """All columns that have something to say about these plans."""
    found = [
        Column("mechanism", "mech.", lambda plan: plan.mechanism),
        *(_label(key) for key in _other_labels(plans)),
        Column("batch size", "batch", lambda plan: f"{plan.size.expected_batch_size}"),
        Column("epochs", "epochs", lambda plan: f"{plan.size.epochs:.4g}"),
        Column("steps", "steps", lambda plan: f"{plan.steps}"),
        Column("sampling rate q", "q", lambda plan: f"{plan.plan.sample_rate:.3g}", 7),
        Column("basis vectors k", "k", lambda plan: "–" if plan.k is None else f"{plan.k}", 3),
        Column("ε", "ε", lambda plan: rounded_up(plan.epsilon)),
        Column("δ", "δ", lambda plan: f"{plan.plan.delta:g}", 2),
    ]
    given_noise = any(plan.plan.target_epsilon is None for plan in plans)
    if given_noise or len(plans) == 1:
        found.append(Column("ε by RDP", "ε RDP", lambda plan: rounded_up(plan.epsilon_by_rdp), 4))
    if given_noise:
        quarters = (("a quarter", "¼"), ("half", "½"), ("three quarters", "¾"))
        found += [
            Column(f"ε after {words} of the run", f"ε {sign}", _at_quarter(number))
            for number, (words, sign) in enumerate(quarters)
        ]
    return [
        *found,
        Column("σ of a step", "σ", lambda plan: _digits(plan.plan.event.noise_multiplier)),
        Column("σ₁ (embedding)", "σ₁", lambda plan: _sigma(plan, "embedding"), 5),
        Column("σ₂ (residual)", "σ₂", lambda plan: _sigma(plan, "residual"), 5),
        Column("embedding : residual", "emb:res\n%", _shares, 6),
        Column(PER_STEP, "noise\nper step", lambda plan: _digits(plan.noise_per_step)),
        Column(OF_MEAN, "noise\nof mean", lambda plan: _digits(plan.noise_of_mean)),
    ]


def plan_table(
    plans: Sequence[NoisePlan], console: Console, among: Sequence[NoisePlan] | None = None
) -> RenderableType:
    """One plan as a list of names and values; several as rows, the least noise of each kind marked.

    `among` are the plans that the rows were chosen from: their least is marked, and what they have in common is left to
    whoever shows them all. Columns are left out where the terminal is too narrow, and that is said.
    """
    if len(plans) == 1 and among is None:
        return _list_of_values(plans[0])
    compared = plans if among is None else among
    constant = {column.name for column in constant_columns(compared)}
    shown = [column for column in columns(compared) if column.name not in constant]
    left_out: list[Column] = []
    table = _rows(plans, shown, compared)
    while _width(table, console) > console.width and any(column.dispensable for column in shown):
        first = max(column.dispensable for column in shown)
        left_out += [column for column in shown if column.dispensable == first]
        shown = [column for column in shown if column.dispensable != first]
        table = _rows(plans, shown, compared)
    parts: list[RenderableType] = [table]
    if among is None:
        parts.insert(0, Text(f"The same for all: {common_values(plans)}.\n", style="dim"))
    if left_out:
        names = ", ".join(column.name for column in left_out)
        parts.append(Text(f"Left out for lack of room: {names}.", style="dim"))
    return Group(*parts)


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(max_width=1000), table).maximum


def constant_columns(plans: Sequence[NoisePlan]) -> list[Column]:
    """The columns that have the same text for all plans."""
    return [column for column in columns(plans) if len({column.text(plan) for plan in plans}) == 1]


def common_values(plans: Sequence[NoisePlan]) -> str:
    """Sizes, thresholds and the columns that do not change, in one line; what changes is not in it."""
    values = [
        _if_common("N", {f"{plan.size.num_records}" for plan in plans}),
        _if_common("p", {f"{plan.size.num_parameters}" for plan in plans}),
        _if_common("", {_thresholds(plan) for plan in plans}),
        *(
            f"{column.name.removeprefix('basis vectors ')} = {column.text(plans[0])}"
            for column in constant_columns(plans)
        ),
        _if_common("accountant", {plan.plan.accountant for plan in plans}),
    ]
    return ", ".join(value for value in values if value and not value.endswith("= –"))


def is_least(plan: NoisePlan, column: Column, compared: Sequence[NoisePlan]) -> bool:
    """Whether the plan has the least noise in a column of noise, of those that have noise, so privacy, at all."""
    figure = {PER_STEP: _noise_per_step, OF_MEAN: _noise_of_mean}.get(column.name)
    if figure is None or figure(plan) == 0 or len(compared) < 2:
        return False
    return figure(plan) == min(figure(other) for other in compared if figure(other) > 0)


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of that share of the width, in eighths of a character."""
    eighths = round(8 * width * min(1.0, max(0.0, share)))
    return (BLOCKS[-1] * (eighths // 8) + BLOCKS[eighths % 8]).rstrip().ljust(1)


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


def _list_of_values(plan: NoisePlan) -> Table:
    table = Table(show_header=False, title="gep-plan", title_justify="left")
    for name, text in values_of(plan).items():
        table.add_row(name, text)
    return table


def _rows(plans: Sequence[NoisePlan], shown: Sequence[Column], compared: Sequence[NoisePlan]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
    for column in shown:
        table.add_column(column.head, justify="left" if column.name == "mechanism" else "right", no_wrap=True)
        if column.name == PER_STEP:
            table.add_column("", no_wrap=True, width=BAR_WIDTH)
    largest = max(plan.noise_per_step for plan in compared)
    for plan in plans:
        cells: list[Text] = []
        for column in shown:
            marked = is_least(plan, column, compared)
            cells.append(
                Text(f"{LEAST} {column.text(plan)}", style="bold green") if marked else Text(column.text(plan))
            )
            if column.name == PER_STEP:
                cells.append(Text(bar(plan.noise_per_step / largest if largest > 0 else 0.0), style="cyan"))
        table.add_row(*cells)
    return table


SHOWN_ANYWAY = {
    "mechanism",
    "mechanism.k",
    "data.batch_size",
    "trainer.max_epochs",
    "trainer.max_steps",
    "privacy.epsilon",
    "privacy.delta",
    "privacy.noise_multiplier",
}


def _other_labels(plans: Sequence[NoisePlan]) -> list[str]:
    """Keys with several values that no other column shows."""
    return list(dict.fromkeys(key for plan in plans for key in plan.labels if key not in SHOWN_ANYWAY))


def _label(key: str) -> Column:
    return Column(key, key.replace(".", ".\n"), lambda plan: plan.labels.get(key, "–"))


def _noise_per_step(plan: NoisePlan) -> float:
    return plan.noise_per_step


def _noise_of_mean(plan: NoisePlan) -> float:
    return plan.noise_of_mean


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


def _if_common(name: str, values: set[str]) -> str:
    if len(values) != 1:
        return ""
    (value,) = values
    return f"{name} = {value}" if name else value


def _digits(value: float) -> str:
    """Four digits."""
    return f"{value:#.4g}".rstrip(".") if value else "0"
