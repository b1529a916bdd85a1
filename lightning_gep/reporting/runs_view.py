"""The table of runs as HTML: it sorts, filters, and opens the card of a run."""

import math

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.card_view import card_html
from lightning_gep.reporting.load import Run
from lightning_gep.reporting.markup import NOT_PRIVATE_MARK, mark, tag, text
from lightning_gep.reporting.tables import COLUMNS, Cell, Column, error_line
from lightning_gep.reporting.text import mechanism_name, short

TALL = 25
"""More rows than this scroll in a box of their own, under a header that stays."""


def runs_section(runs: list[Run], best: Run | None) -> str:
    """The filters and the table."""
    bodies = [_body(index, run, run is best) for index, run in enumerate(runs)]
    head = tag("thead", tag("tr", *map(_header, COLUMNS)))
    caption = tag("caption", "All runs; the buttons in the header sort", class_="hidden")
    table = tag("table", caption, head, *bodies, id="runs-table")
    box = "scroll tall" if len(runs) > TALL else "scroll"
    scroll = tag("div", table, class_=box, tabindex=0, role="region", aria_label="Table of runs")
    return tag("section", tag("h2", "Runs"), _filters(runs), scroll, id="runs")


def templates(runs: list[Run]) -> str:
    """What opens under a run, kept aside until it is asked for."""
    return "".join(
        tag("template", _opened(run), id=f"card-{index}") for index, run in enumerate(runs) if _can_open(run)
    )


def _filters(runs: list[Run]) -> str:
    if len(runs) == 1:
        return ""
    words = tag(
        "input", id="filter-text", type="search", placeholder="words in name, status or error", autocomplete="off"
    )
    statuses = _choice("filter-status", {run.status: run.status for run in runs})
    mechanisms = _choice(
        "filter-mechanism", {run.mechanism: mechanism_name(run.mechanism) for run in runs if run.mechanism}
    )
    count = tag("output", f"{len(runs)} of {len(runs)} runs shown", id="filter-count", aria_live="polite")
    labels = [
        tag("label", f"{name} ", control)
        for name, control in zip(("Filter", "Status", "Mechanism"), (words, statuses, mechanisms), strict=True)
    ]
    return tag("div", *labels, count, class_="filters")


def _choice(identifier: str, values: dict[str, str]) -> str:
    options = [tag("option", text(shown), value=value) for value, shown in values.items()]
    return tag("select", tag("option", "all", value=""), *options, id=identifier)


def _header(column: Column) -> str:
    button = tag("button", text(column.title), type="button")
    numeric = column.numeric
    return tag(
        "th",
        button,
        scope="col",
        data_key=column.key,
        data_numeric="1" if numeric else None,
        class_="number" if numeric else None,
    )


def _body(index: int, run: Run, best: bool) -> str:
    """A body of its own for every run: what opens under a row moves and hides with it."""
    search = " ".join([run.job, run.status, mechanism_name(run.mechanism), run.error or ""]).lower()
    return tag(
        "tbody",
        tag("tr", *(_cell(index, run, column, best) for column in COLUMNS)),
        data_search=search,
        data_status=run.status,
        data_mechanism=run.mechanism,
        class_="is-best" if best else None,
    )


def _cell(index: int, run: Run, column: Column, best: bool) -> str:
    cell = column.cell(run)
    value = _sorted_as(cell, column)
    if column.key == "job":
        return tag("th", _name(index, run, best), scope="row", data_value=value)
    if column.key == "status":
        return tag("td", tag("span", text(cell.text), class_=f"status {run.status}"), data_value=value)
    warning = tag("br") + NOT_PRIVATE_MARK if column.key == "epsilon" and run.not_private else ""
    return tag("td", text(cell.text), warning, data_value=value, class_="number" if column.numeric else None)


def _sorted_as(cell: Cell, column: Column) -> str:
    if not column.numeric:
        return cell.text
    if cell.value is None:
        return ""
    return "Infinity" if cell.value == math.inf else repr(float(cell.value))


def _name(index: int, run: Run, best: bool) -> str:
    # A break is allowed after every comma: names are long and phones are narrow.
    name = ",<wbr>".join(text(part) for part in run.job.split(","))
    if _can_open(run):
        opens = {"aria_expanded": "false", "aria_controls": f"opened-{index}", "data_card": f"card-{index}"}
        name = tag("button", name, type="button", class_="job", **opens)
    star = " " + mark("best by validation", "good") if best else ""
    error = tag("span", text(error_line(run.error)), class_="error") if run.error else ""
    return name + star + error


def _can_open(run: Run) -> bool:
    return run.status not in ("waiting", "unreadable")


def _opened(run: Run) -> str:
    where = tag("p", "Directory: ", tag("span", text(run.place or "."), class_="word"), class_="quiet")
    error = tag("pre", text(run.error)) if run.error else ""
    known = (
        f"ε spent {rounded_up(run.epsilon)}, δ = {short(run.delta)}, noise multiplier {short(run.noise_multiplier)}."
    )
    return (
        where + error + (card_html(run.card) if run.card else tag("p", text(f"No privacy card was written. {known}")))
    )
