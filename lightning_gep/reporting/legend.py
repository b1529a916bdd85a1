"""The legend of a plot as buttons: it wraps on a phone, and a keyboard can switch series on and off."""

from lightning_gep.reporting.markup import tag, text
from lightning_gep.reporting.plot import Entry, Style

DASHES = {"solid": None, "dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3"}
SHAPES = {
    "circle": "M15 2a4 4 0 1 0 .01 0Z",
    "square": "M11.5 2.5h7v7h-7Z",
    "diamond": "M15 1.5 19.5 6 15 10.5 10.5 6Z",
    "triangle-up": "M15 2 19.5 10H10.5Z",
}


def legend_html(entries: list[Entry]) -> str:
    """A button per series, pressed while the series is shown."""
    if not entries:
        return ""
    items = [
        tag("button", _sample(entry.style), tag("span", text(entry.label)), **_pressed(entry.group))
        for entry in entries
    ]
    return tag("ul", *(tag("li", item) for item in items), class_="legend", aria_label="Series; press to hide or show")


def _pressed(group: str) -> dict[str, str]:
    return {"type": "button", "aria_pressed": "true", "data_group": group}


def _sample(style: Style) -> str:
    name = style.colour[1:].partition("/")[0]
    colour = f"var(--{f'series-{name}' if name.isdigit() else name})"
    fill = "var(--panel)" if style.symbol.endswith("-open") else "currentColor"
    dash = DASHES[style.dash]
    line = tag("path", d="M0 6H30", stroke="currentColor", stroke_width=2, stroke_dasharray=dash)
    shape = SHAPES.get(style.symbol.removesuffix("-open"))
    symbol = shape and tag("path", d=shape, fill=fill, stroke="currentColor", stroke_width="1.5")
    return tag("svg", line, symbol or "", width=30, height=12, aria_hidden="true", style=f"color:{colour}")
