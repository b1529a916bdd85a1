"""Findings as one HTML page: a plot for each part of the audit, and a table of all bounds."""

from collections.abc import Sequence
from pathlib import Path

from lightning_gep.audit import Finding
from lightning_gep.cli.audit.output import COLUMNS, by_part, rows, shown, verdict
from lightning_gep.privacy.files import write_text
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.pages import page
from lightning_gep.reporting.plots import Entry, Plot, Style, Table, axis, trace
from lightning_gep.reporting.text import counted, mechanism_name

SYMBOLS = ("circle", "square", "diamond", "triangle-up")


def write_page(path: Path, findings: Sequence[Finding], confidence: float) -> None:
    """Write the page of these findings."""
    plots = [bounds_plot(title, members) for title, members in by_part(findings).items()]
    said, exceeded = verdict(findings, confidence), any(finding.exceeded for finding in findings)
    assumptions = {bound.name: f"{bound.name} assumes: {bound.assumes}" for f in findings for bound in f.bounds}
    table = Table(["part", *COLUMNS], [[finding.part, *row] for finding in findings for row, _ in rows(finding)])
    text = page(
        "plots.html",
        command="gep-audit",
        title="Claimed ε and lower bounds",
        plots=plots,
        rounding="Claims are rounded up, bounds down.",
        navigation=[*((f"plot-{plot.key}-title", plot.title) for plot in plots), ("table", "All bounds")],
        words=[*([] if exceeded else [said]), *assumptions.values()],
        notice=said if exceeded else "",
        table_title="All bounds",
        content=table,
    )
    write_text(path, text)


def bounds_plot(title: str, findings: Sequence[Finding]) -> Plot:
    """The claims and, under each, its bounds."""
    names = [f"{mechanism_name(finding.mechanism)} {rounded_up(finding.claimed, 2)}" for finding in findings]
    ticks = {"tickvals": list(range(len(names))), "ticktext": names, "range": [-0.5, len(names) - 0.5]}
    plot = Plot(
        key=findings[0].part,
        title=title,
        unit="ε",
        summary=f"{title}: claimed ε and lower bounds of {counted(len(findings), 'configuration')}.",
        layout={"xaxis": axis("", **ticks), "yaxis": {"rangemode": "tozero"}},
        notes=["A bound above its claim proves the claim wrong; one below it proves nothing."],
        wide=True,
    )
    claims = Entry("claimed", "claimed", Style("@text", "star", ""))
    points = [(float(place), finding.claimed) for place, finding in enumerate(findings)]
    texts = [f"{name}\nclaimed ε {rounded_up(f.claimed)}" for name, f in zip(names, findings, strict=True)]
    plot.add(claims, [trace(points, texts, claims, mode="markers")], texts)
    for place, name in enumerate(dict.fromkeys(bound.name for finding in findings for bound in finding.bounds)):
        entry = Entry(f"b{place}", name, Style(f"@series-{place + 1}", SYMBOLS[place % len(SYMBOLS)], ""))
        found = [(x, b) for x, finding in enumerate(findings) for b in finding.bounds if b.name == name]
        hover = [f"{names[x]}\n{name}: ε at least {shown(bound.epsilon)}" for x, bound in found]
        highest = 2 * max(finding.claimed for finding in findings)  # an infinite bound has no place on an axis
        heights = [(float(x), min(bound.epsilon, highest)) for x, bound in found]
        plot.add(entry, [trace(heights, hover, entry, mode="markers")], hover)
    return plot
