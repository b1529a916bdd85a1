"""Plans for people: a table for the terminal, and sentences about it. Values that all rows share are printed once."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightning_gep.cli.plan.costs import NoisePlan
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.text import NOTHING

NOISE = {"noise_per_step": "noise per step", "noise_of_mean": "noise of the mean over the run"}
"""What is better when it is less: its name in a row, and in words."""
FIGURES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "mechanism": ("mech.", lambda row: row["mechanism"]),
    "training records N": ("N", lambda row: f"{row['records']}"),
    "parameters p": ("p", lambda row: f"{row['parameters']}"),
    "batch size": ("batch", lambda row: f"{row['batch_size']}"),
    "epochs": ("epochs", lambda row: f"{row['epochs']:.4g}"),
    "steps": ("steps", lambda row: f"{row['steps']}"),
    "sampling rate q": ("q", lambda row: f"{row['sample_rate']:.3g}"),
    "basis vectors k": ("k", lambda row: NOTHING if row["k"] is None else f"{row['k']}"),
    "memory of the basis": ("basis", lambda row: _megabytes(row["basis_bytes"])),
    "gradient of a record": ("record", lambda row: _megabytes(row["gradient_bytes"])),
    "all-reduced a step": ("sent", lambda row: _megabytes(row["reduced_bytes"])),
    "thresholds": ("S", lambda row: _thresholds(row)),
    "ε": ("ε", lambda row: rounded_up(row["epsilon"])),
    "δ": ("δ", lambda row: f"{row['delta']:g}"),
    "accountant": ("acc.", lambda row: row["accountant"]),
    "ε by RDP": ("ε RDP", lambda row: rounded_up(row["epsilon_by_rdp"])),
    "ε after a quarter of the run": ("ε ¼", lambda row: _at_quarter(row, 0)),
    "ε after half of the run": ("ε ½", lambda row: _at_quarter(row, 1)),
    "ε after three quarters of the run": ("ε ¾", lambda row: _at_quarter(row, 2)),
    "σ of a step": ("σ", lambda row: _digits(row["noise_multiplier"])),
    "σ₁ (embedding)": ("σ₁", lambda row: _digits(row["sigma_embedding"])),
    "σ₂ (residual)": ("σ₂", lambda row: _digits(row["sigma_residual"] if row["k"] is not None else None)),
    "embedding : residual": ("emb:res\n%", lambda row: _shares(row)),
    NOISE["noise_per_step"]: ("noise\nper step", lambda row: _digits(row["noise_per_step"])),
    NOISE["noise_of_mean"]: ("noise\nof mean", lambda row: _digits(row["noise_of_mean"])),
}
"""Everything about a plan: its name, a short head for narrow tables, and its text."""
DETAILS = {"sampling rate q", "basis vectors k", "thresholds", "ε by RDP", "σ₁ (embedding)", "σ₂ (residual)"}
DETAILS |= {"embedding : residual", "memory of the basis", "gradient of a record", "all-reduced a step"}
"""Not in the table on a terminal: they would not fit."""
HAVE_A_FIGURE = {f"privacy.{name}" for name in ("epsilon", "delta", "noise_multiplier", "accountant")}
HAVE_A_FIGURE |= {"mechanism", "data.batch_size", "trainer.max_epochs", "trainer.max_steps"}
"""Overrides that need no column of their own."""


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.3g} MB" if size else NOTHING


def figures(plan: NoisePlan) -> dict[str, str]:
    """Everything about a plan in words, by name."""
    labels = {key: value for key, value in plan.labels.items() if key not in HAVE_A_FIGURE}
    return {**labels, **{name: text(plan.row) for name, (_, text) in FIGURES.items()}}


def differing_figures(plans: Sequence[NoisePlan]) -> list[str]:
    """The names of the figures that are not the same for all plans."""
    found = [figures(plan) for plan in plans]
    return [name for name in found[0] if len({each.get(name, NOTHING) for each in found}) > 1]


def shared_figures(plans: Sequence[NoisePlan]) -> str:
    """The figures that are the same for all plans, in one line."""
    differing = differing_figures(plans)
    shared = {name: text for name, text in figures(plans[0]).items() if name not in differing and text != NOTHING}
    return f"The same for all: {', '.join(f'{name} {text}' for name, text in shared.items())}."


def rows(plans: Sequence[NoisePlan], names: Sequence[str]) -> list[list[str]]:
    """The figures with these names, a row for each plan; ★ marks the least noise of each kind.

    A plan without noise, so without privacy, never has the least.
    """
    found = [[figures(plan).get(name, NOTHING) for name in names] for plan in plans]
    for criterion, name in NOISE.items():
        noise = [getattr(plan, criterion) for plan in plans]
        least = min((value for value in noise if value > 0), default=None)
        for row, value in zip(found, noise, strict=True):
            if name in names and value == least:
                row[names.index(name)] = f"★ {row[names.index(name)]}"
    return found


def plan_table(plans: Sequence[NoisePlan]) -> RenderableType:
    """One plan as a list of names and values; several as rows."""
    if len(plans) == 1:
        table = Table(show_header=False, title="gep-plan", title_justify="left")
        for name, text in figures(plans[0]).items():
            if text != NOTHING:
                table.add_row(name, text)
        return table
    names = differing_figures(plans)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
    shown = [name for name in names if name not in DETAILS]
    for name in shown:
        head = FIGURES[name][0] if name in FIGURES else name.replace(".", ".\n")
        table.add_column(head, justify="left" if name == "mechanism" else "right", no_wrap=True)
    for row in rows(plans, shown):
        table.add_row(*(Text(text, style="bold green" if text.startswith("★") else "") for text in row))
    parts: list[RenderableType] = [Text(f"{shared_figures(plans)}\n", style="dim"), table]
    if len(shown) < len(names):
        more = ", ".join(name for name in names if name in DETAILS)
        parts.append(Text(f"With --html and --json also: {more}.", style="dim"))
    return Group(*parts)


def notes(plans: Sequence[NoisePlan]) -> list[str]:
    """How to read these rows."""
    single = sorted({plan.mechanism for plan in plans if plan.plan.release.embedding is None})
    gradient = f" ({', '.join(single)}: √p·S·σ/n̄)" if single else ""
    least = " ★ marks the least." if len(plans) > 1 else ""
    found = [f"Noise per step = √(k(S₁σ₁)² + p(S₂σ₂)²)/n̄{gradient}; of the mean over the run: that/√steps.{least}"]
    if len({(plan.mechanism, plan.k, *(part.clip for part in plan.plan.release.parts)) for plan in plans}) > 1:
        found.append(
            "Mechanism, k and thresholds also decide how much of the gradient is clipped, or left out (bgep): there, "
            "less noise is not always better."
        )
    if any(plan.plan.event.noise_multiplier == 0 for plan in plans):
        found.append("Rows without noise (ε = ∞) are NOT private.")
    elif not all(plan.private for plan in plans):
        found.append("privacy.generator=seeded makes draws repeatable: such a run is NOT private, whatever its ε.")
    return found


def _at_quarter(row: dict[str, Any], number: int) -> str:
    quarters = row.get("epsilon_at_quarters")
    return NOTHING if quarters is None else rounded_up(quarters[number]["epsilon"])


def _shares(row: dict[str, Any]) -> str:
    if row["clip_embedding"] is None or row["clip_residual"] is None or math.isnan(row["embedding_share"]):
        return NOTHING
    embedding = round(100 * row["embedding_share"])
    return f"{embedding}:{100 - embedding}"


def _thresholds(row: dict[str, Any]) -> str:
    names = {"S₁": "clip_embedding", "S₂": "clip_residual"} if row["k"] is not None else {"S": "clip_residual"}
    return ", ".join(f"{name} = {row[key]:g}" for name, key in names.items() if row[key] is not None)


def _digits(value: float | None) -> str:
    return NOTHING if value is None else f"{value:#.4g}".rstrip(".") if value else "0"
