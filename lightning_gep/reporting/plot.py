"""A plot as plain dictionaries that plotly.js draws, with its legend and its numbers as a table beside it.

Colours are names ("@1", "@muted/0.2") that the page resolves for the theme it is shown in.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_gep.reporting.grouping import Groups

Trace = dict[str, Any]

COLOURS = 6
FIXED = {"gep": 1, "bgep": 2, "gp": 3}
SYMBOLS = {"gep": "circle", "bgep": "square", "gp": "diamond", "pate": "triangle-up"}
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Style:
    """How a series looks: never by colour alone."""

    colour: str
    symbol: str = "circle"
    dash: str = "solid"

    @property
    def as_line(self) -> "Style":
        """The same without marks."""
        return Style(self.colour, "", self.dash)


@dataclass(frozen=True)
class Entry:
    """A line of the legend; `group` is the `legendgroup` of the traces that it stands for."""

    group: str
    label: str
    style: Style


@dataclass(frozen=True)
class Table:
    """The numbers of a plot, as text."""

    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Plot:
    """One figure. `summary` says in a sentence what is to be seen, for those who do not see it."""

    key: str
    title: str
    unit: str
    """What the upright axis shows."""
    summary: str
    traces: list[Trace]
    layout: dict[str, Any]
    legend: list[Entry]
    table: Table
    notes: list[str] = field(default_factory=list)
    wide: bool = False
    height: int = 320


@dataclass(frozen=True)
class Section:
    """Plots that belong together; `missing` says what would have to be logged for those that are not there."""

    key: str
    title: str
    plots: list[Plot]
    missing: list[str]
    private: bool = True


def plotly_text(text: str) -> str:
    """Text that plotly shows as it is: it reads a few tags and entities in labels."""
    return html.escape(text, quote=False)


def styles(groups: Groups) -> dict[str, Style]:
    """A style for every group of runs: by mechanism where that is enough, by order and dash where it is not."""
    mechanisms = {name: runs[0].mechanism for name, runs in groups.items()}
    kinds = list(dict.fromkeys(mechanisms.values()))
    open_ones = {name for name, runs in groups.items() if any(run.not_private for run in runs)}
    found = {}
    for place, (name, mechanism) in enumerate(mechanisms.items()):
        within = [other for other in mechanisms if mechanisms[other] == mechanism].index(name)
        if len(kinds) == len(groups) or (len(groups) > COLOURS and len(kinds) > 1):
            colour, dash = FIXED.get(mechanism, 4 + kinds.index(mechanism) % 3), DASHES[within % len(DASHES)]
        else:
            colour, dash = place % COLOURS + 1, DASHES[place // COLOURS % len(DASHES)]
        symbol = SYMBOLS.get(mechanism, "circle")
        style = Style(f"@{colour}", symbol, dash)
        found[name] = Style(style.colour, f"{symbol}-open", "dash") if name in open_ones else style
    return found


def trace(
    x: Sequence[Any], y: Sequence[float], texts: Sequence[str], *, group: str, style: Style, mode: str, **more: Any
) -> Trace:
    """Points or lines whose hover label is `texts`, which come from disk and are escaped here."""
    return {
        "type": "scatter",
        "mode": mode,
        "x": [tidy(value) for value in x],
        "y": [tidy(value) for value in y],
        "text": [plotly_text(text).replace("\n", "<br>") for text in texts],
        "hovertemplate": "%{text}<extra></extra>",
        "legendgroup": group,
        "showlegend": False,
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"color": style.colour, "symbol": style.symbol or "circle", "size": 8},
        **more,
    }


def band(points: Sequence[tuple[float, float, float | None]], *, group: str, style: Style) -> Trace:
    """The area one standard deviation around a mean curve of (step, mean, deviation)."""
    upper = [(step, mean + (deviation or 0.0)) for step, mean, deviation in points]
    lower = [(step, mean - (deviation or 0.0)) for step, mean, deviation in reversed(points)]
    around = [*upper, *lower]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [tidy(step) for step, _ in around],
        "y": [tidy(value) for _, value in around],
        "fill": "toself",
        "fillcolor": f"{style.colour}/0.15",
        "line": {"width": 0, "color": f"{style.colour}/0"},
        "hoverinfo": "skip",
        "legendgroup": group,
        "showlegend": False,
    }


def tidy(value: Any) -> Any:
    """A number with no more digits than a plot can show."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def log_if_wide(values: Sequence[float]) -> dict[str, Any]:
    """An axis with a tick at every value: logarithmic where they span a factor of four."""
    ticks = sorted(set(values))
    axis: dict[str, Any] = {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]} if len(ticks) <= 8 else {}
    wide = bool(ticks) and ticks[0] > 0 and ticks[-1] >= 4 * ticks[0]
    return {**axis, "type": "log" if wide else "linear"}
