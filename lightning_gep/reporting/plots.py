"""A plot as plain data that plotly.js draws, with its legend and its numbers in words.

Colors are names of the stylesheet ("@series-1", "@muted"), which the page resolves for the theme it is shown in.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightning_gep.reporting.groups import Groups

Trace = dict[str, Any]
Pair = tuple[float, float]

COLORS = 6
FIXED = {"gep": 1, "bgep": 2, "gp": 3, "spectral": 4}
SYMBOLS = {"gep": "circle", "bgep": "square", "gp": "diamond", "spectral": "cross", "pate": "triangle-up"}
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Style:
    """How a series looks; never distinguished by color alone."""

    color: str
    symbol: str = "circle"
    dash: str = "solid"


@dataclass(frozen=True)
class Entry:
    """A legend entry; `group` is the `legendgroup` of the traces it shows or hides."""

    group: str
    label: str
    style: Style


@dataclass(frozen=True)
class Table:
    """Columns and rows of text."""

    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Plot:
    """One figure. `summary` describes it in a sentence for screen readers; `unit` labels the vertical axis."""

    key: str
    title: str
    unit: str
    summary: str
    layout: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    wide: bool = False
    height: int = 320
    traces: list[Trace] = field(default_factory=list)
    legend: list[Entry] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)

    def add(self, entry: Entry, traces: Sequence[Trace], numbers: Sequence[str]) -> None:
        """One more series, with its numbers in words: those that its points show under the mouse."""
        self.legend.append(entry)
        self.traces.extend(traces)
        self.numbers.extend(numbers)


@dataclass(frozen=True)
class Section:
    """Plots that belong together; `missing` says how to log what could not be shown."""

    key: str
    title: str
    plots: list[Plot]
    missing: list[str] = field(default_factory=list)
    private: bool = True


def entries(groups: Groups) -> list[Entry]:
    """A legend entry for every group of runs, styled by mechanism if that tells them apart, otherwise by order."""
    mechanisms = {name: runs[0].mechanism for name, runs in groups.items()}
    kinds = list(dict.fromkeys(mechanisms.values()))
    by_mechanism = len(kinds) == len(groups) or (len(groups) > COLORS and len(kinds) > 1)
    found = []
    for place, (name, mechanism) in enumerate(mechanisms.items()):
        style = replace(numbered(place), symbol=SYMBOLS.get(mechanism, "circle"))
        if by_mechanism:
            within = [other for other in mechanisms if mechanisms[other] == mechanism].index(name)
            color = FIXED.get(mechanism, 4 + kinds.index(mechanism) % 3)
            style = replace(style, color=f"@series-{color}", dash=DASHES[within % len(DASHES)])
        if any(run.not_private for run in groups[name]):
            style = replace(style, symbol=f"{style.symbol}-open", dash="dash")
        found.append(Entry(f"s{place}", name, style))
    return found


def numbered(place: int) -> Style:
    """The style of the line at a place in the legend, without markers."""
    return Style(f"@series-{place % COLORS + 1}", "", DASHES[place // COLORS % len(DASHES)])


def trace(points: Sequence[Pair], texts: Sequence[str], entry: Entry, mode: str = "", **more: Any) -> Trace:
    """Points or a line with `texts` as hover labels. The texts may come from disk, so they are escaped here."""
    style = entry.style
    return {
        "type": "scatter",
        "mode": mode or ("lines" if len(points) > 1 else "markers"),
        "x": [tidy(x) for x, _ in points],
        "y": [tidy(y) for _, y in points],
        # plotly.js interprets a few tags and entities in labels.
        "text": [html.escape(text, quote=False).replace("\n", "<br>") for text in texts],
        "hovertemplate": "%{text}<extra></extra>",
        "legendgroup": entry.group,
        "showlegend": False,
        "line": {"color": style.color, "dash": style.dash, "width": 2},
        "marker": {"color": style.color, "symbol": style.symbol or "circle", "size": 8},
        **more,
    }


def tidy(value: float) -> float:
    """A number with no more digits than a plot can show."""
    return float(f"{value:.6g}") if math.isfinite(value) else value


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": title}, **more}


def axis_with_ticks(title: str, values: Sequence[float]) -> dict[str, Any]:
    """An axis with a tick at every value; logarithmic if the values span a factor of four."""
    ticks = sorted(set(values))
    labels = {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]} if len(ticks) <= 8 else {}
    wide = bool(ticks) and ticks[0] > 0 and ticks[-1] >= 4 * ticks[0]
    return axis(title, type="log" if wide else "linear", **labels)
