"""Findings as one HTML page: claims with the bounds under them as a plot, and all bounds as a table."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lightning_gep.audit import Finding
from lightning_gep.cli.audit.output import COLUMNS, TITLES, rows, verdict
from lightning_gep.privacy.files import write_text
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.plots import escaped
from lightning_gep.reporting.report import plotly_script, policy, script, source, template
from lightning_gep.reporting.text import mechanism_name

LAYOUT = {
    "yaxis": {"title": {"text": "ε"}, "rangemode": "tozero", "gridcolor": "rgba(128,128,128,0.3)"},
    "legend": {"orientation": "h", "y": -0.25},
    "margin": {"t": 20, "r": 20},
    # Readable on light and on dark pages.
    "font": {"color": "#808080"},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
}


def write_page(path: Path, findings: Sequence[Finding], confidence: float) -> None:
    """Write the page. Raises ConfigurationError if plotly is not installed."""
    drawn = json.dumps([traces(findings), LAYOUT, {"responsive": True, "displayModeBar": False}], allow_nan=False)
    draw = f"Plotly.newPlot('bounds', ...{drawn}).then(() => {{ document.documentElement.dataset.plots = 'drawn'; }});"
    scripts = {"plotly": plotly_script(), "script": script(draw)}
    text = template("audit.html").render(
        **scripts,
        policy=policy(scripts.values()),
        css=Markup(source("page.css")),
        verdict=verdict(findings, confidence),
        exceeded=any(finding.exceeded for finding in findings),
        columns=COLUMNS,
        parts=[(TITLES[finding.part], rows(finding)) for finding in findings],
        assumptions={bound.name: bound.assumes for finding in findings for bound in finding.bounds},
    )
    write_text(path, text)


def traces(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The claims, and one series for each kind of bound, over mechanisms and their claims."""
    points = [(finding, "claimed ε", finding.claimed) for finding in findings]
    points += [(f, f"{TITLES[f.part]}: {bound.name}", bound.epsilon) for f in findings for bound in f.bounds]
    highest = 2 * max(finding.claimed for finding in findings)  # an infinite bound has no place on an axis
    claim = {"symbol": "line-ew", "size": 26, "color": "#808080", "line": {"width": 3, "color": "#808080"}}
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escaped(name),
            "x": [_place(finding) for finding, own, _ in points if own == name],
            "y": [epsilon if math.isfinite(epsilon) else highest for _, own, epsilon in points if own == name],
            "marker": claim if number == 0 else {"symbol": number - 1, "size": 10},
        }
        for number, name in enumerate(dict.fromkeys(name for _, name, _ in points))
    ]


def _place(finding: Finding) -> str:
    return escaped(f"{mechanism_name(finding.mechanism)}, {rounded_up(finding.claimed, 2)}")
