"""Sections of plots as HTML: each plot with its legend, its notes, and its numbers as a table."""

from typing import Any

from lightning_gep.reporting.legend import legend_html
from lightning_gep.reporting.markup import NOT_PRIVATE_MARK, paragraphs, tag, text
from lightning_gep.reporting.plot import Plot, Section, Table

NOT_PRIVATE = (
    "Not private. These values are functions of the training records, without noise; no ε covers them. Do not publish "
    "them, and do not choose anything by them."
)


def section_html(section: Section) -> str:
    """A section; what is not private stands inside a hatched border and says so. Nothing if it has no plots."""
    if not section.plots:
        return ""
    grid = tag("div", *(figure_html(plot, private=section.private) for plot in section.plots), class_="plots")
    if section.private:
        return tag("section", tag("h2", text(section.title)), grid, id=section.key)
    title = tag("h2", text(section.title), " ", NOT_PRIVATE_MARK)
    warning = tag("p", tag("strong", text(NOT_PRIVATE)))
    return tag("section", title, warning, grid, id=section.key, class_="hatched")


def missing_html(sections: list[Section]) -> str:
    """What is not shown, and how to have it shown."""
    hints = [tag("li", text(hint)) for section in sections for hint in section.missing]
    return tag("section", tag("h2", "Not shown"), tag("ul", *hints, class_="quiet"), id="missing") if hints else ""


def figure_html(plot: Plot, *, private: bool) -> str:
    """The frame that a plot is drawn into."""
    key = f"plot-{plot.key}"
    title = tag("h3", text(plot.title), "" if private else f" {NOT_PRIVATE_MARK}", id=f"{key}-title")
    size = f"min-height:{plot.height}px"
    drawing = tag("div", id=key, class_="drawing", role="group", aria_label=plot.summary, style=size)
    data = tag("details", tag("summary", "Data of this plot"), table_html(plot.table, f"Data: {plot.title}"))
    return tag(
        "figure",
        title,
        tag("p", text(plot.unit), class_="unit"),
        legend_html(plot.legend),
        drawing,
        tag("figcaption", paragraphs(plot.notes), data),
        class_="panel wide" if plot.wide else "panel",
        data_plot=plot.key,
        aria_labelledby=f"{key}-title",
    )


def table_html(table: Table, name: str) -> str:
    """A plain table in a box of its own, which scrolls where the page is narrow."""
    head = tag("tr", *(tag("th", text(column), scope="col") for column in table.columns))
    rows = [tag("tr", *(tag("td", text(cell)) for cell in row)) for row in table.rows]
    content = tag("table", tag("thead", head), tag("tbody", *rows), class_="plain")
    return tag("div", content, class_="scroll", tabindex=0, role="region", aria_label=name)


def drawn(plot: Plot) -> dict[str, Any]:
    """What the page's script needs to draw it."""
    return {"key": plot.key, "traces": plot.traces, "layout": plot.layout, "height": plot.height}
