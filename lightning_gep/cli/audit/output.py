"""Findings for people: a table and a sentence. Claims are rounded up and bounds down."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table

from lightning_gep.audit import Finding
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.text import duration, mechanism_name

TITLES = {
    "release": "One release, every record drawn",
    "run": "The steps of a whole run, composed",
    "training": "A training with canaries in its data",
}
COLUMNS = ["mechanism", "claimed ε", "at δ", "bound by", "ε at least", "of claim"]


def findings_tables(findings: Sequence[Finding]) -> Group:
    """Every bound beside its claim, a table for each part of the audit."""
    return Group(*(_table(title, members) for title, members in by_part(findings).items()))


def by_part(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """The findings of each part under its title."""
    parts = {title: [finding for finding in findings if finding.part == part] for part, title in TITLES.items()}
    return {title: members for title, members in parts.items() if members}


def _table(title: str, findings: Sequence[Finding]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title, title_justify="left", title_style="bold"
    )
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("mechanism", "bound by") else "right", no_wrap=True)
    for finding in findings:
        for row, exceeds in rows(finding):
            table.add_row(*row, style="bold red" if exceeds else "")
    return table


def rows(finding: Finding) -> list[tuple[list[str], bool]]:
    """A row for each bound, and whether it exceeds the claim."""
    claim = [mechanism_name(finding.mechanism), rounded_up(finding.claimed), f"{finding.delta:g}"]
    return [
        (
            [*(claim if place == 0 else ["", "", ""]), bound.name, shown(bound.epsilon), share(bound.epsilon, finding)],
            bound.epsilon > finding.claimed,
        )
        for place, bound in enumerate(finding.bounds)
    ]


def shown(bound: float) -> str:
    """A lower bound, rounded down."""
    return "∞" if math.isinf(bound) else f"{math.floor(100 * bound) / 100:.2f}"


def share(bound: float, finding: Finding) -> str:
    """A bound as a share of the claim, rounded down."""
    return "∞" if math.isinf(bound) else f"{math.floor(100 * bound / finding.claimed)} %"


def verdict(findings: Sequence[Finding], confidence: float) -> str:
    """What the bounds say together."""
    time = duration(sum(finding.seconds for finding in findings))
    wrong = [finding for finding in findings if finding.exceeded]
    if not wrong:
        return f"No bound is above its claim. All of them hold with {confidence:.0%} confidence. Time: {time}."
    worst = max(wrong, key=lambda finding: finding.strongest.epsilon / finding.claimed)
    return (
        f"{mechanism_name(worst.mechanism)} claims ε = {rounded_up(worst.claimed)}, but ε is at least "
        f"{shown(worst.strongest.epsilon)} ({worst.strongest.name}; {TITLES[worst.part].lower()}). Bounds hold with "
        f"{confidence:.0%} confidence, so the claim is wrong. Time: {time}."
    )
