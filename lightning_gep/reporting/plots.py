"""A plot as plain data that plotly.js draws, with its numbers in words.

Colors are names of the stylesheet ("@series-1", "@grid"), which the page resolves for the theme it is shown in.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

COLORS = 6
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up")
DASHES = ("solid", "dash", "dot", "dashdot")
HEIGHT, HEIGHT_OF_A_NAME = 320, 20


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
    traces: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    """The points in words."""

    @property
    def height(self) -> int:
        """In pixels, with room for the legend."""
        return HEIGHT + HEIGHT_OF_A_NAME * max(0, len({trace["legendgroup"] for trace in self.traces}) - 3)

    def add(
        self,
        name: str,
        place: int,
        points: Sequence[tuple[float, float]],
        texts: Sequence[str],
        *,
        private: bool = True,
        **more: Any,
    ) -> None:
        """One more line, with `texts` as hover labels. Names and texts may come from disk, so they are escaped here.

        The `place` of a series decides its color, symbol and dashes: never its color alone. A series without privacy is
        dashed with open symbols.
        """
        color, symbol = f"@series-{place % COLORS + 1}", SYMBOLS[place % len(SYMBOLS)]
        first = not any(trace["legendgroup"] == str(place) for trace in self.traces)
        self.traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [tidy(x) for x, _ in points],
                "y": [tidy(y) for _, y in points],
                "text": [escaped(text) for text in texts],
                "hovertemplate": "%{text}<extra></extra>",
                "name": escaped(name),
                "legendgroup": str(place),
                "showlegend": first,
                "line": {"color": color, "dash": DASHES[place % len(DASHES)] if private else "dash", "width": 2},
                "marker": {"color": color, "symbol": symbol if private else f"{symbol}-open", "size": 8},
                **more,
            }
        )


@dataclass(frozen=True)
class Section:
    """Plots that belong together; `missing` says how to log what could not be shown."""

    key: str
    title: str
    plots: list[Plot]
    missing: list[str] = field(default_factory=list)
    private: bool = True


def escaped(text: str) -> str:
    """A text for plotly.js, which interprets a few tags and entities in labels."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def tidy(value: float) -> float:
    """A number with no more digits than a plot can show."""
    return float(f"{value:.6g}") if math.isfinite(value) else value


def axis_with_ticks(title: str, values: Sequence[float]) -> dict[str, Any]:
    """An axis with a tick at every value; logarithmic if the values span a factor of four."""
    ticks = sorted(set(values))
    labels = {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]} if len(ticks) <= 8 else {}
    wide = bool(ticks) and ticks[0] > 0 and ticks[-1] >= 4 * ticks[0]
    return {"title": {"text": title}, "type": "log" if wide else "linear", **labels}
