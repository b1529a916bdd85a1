"""The report of a collection of runs, as an HTML page or as Markdown."""

import re
from typing import Any

from jinja2 import TemplateError
from markupsafe import Markup

from lightning_gep.privacy.card import card_css, card_html
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting import facts
from lightning_gep.reporting.accuracy import paper_rows
from lightning_gep.reporting.figures import sections
from lightning_gep.reporting.pages import page, templates
from lightning_gep.reporting.plots import Table
from lightning_gep.reporting.published import RESULTS, remarks
from lightning_gep.reporting.runs import Card, Collection, Run, inner
from lightning_gep.reporting.text import counted, duration, mechanism_name, sentence, short

FILTERS: dict[str, Any] = {
    "epsilon": rounded_up,
    "short": short,
    "duration": duration,
    "cells": facts.cells,
    "composition": facts.composition_sentence,
    "statement": lambda card: inner(card, "guarantee", "statement") or "",
    "error_line": facts.error_line,
    "search_words": lambda run: f"{run.job} {run.status} {mechanism_name(run.mechanism)} {run.error or ''}".lower(),
}


def html_report(collection: Collection) -> str:
    """The report as one HTML page."""
    runs, single, best = collection.runs, collection.single, facts.best_run(collection.runs)
    found = sections(collection)
    size = counted(len(runs), "run")
    kind = "Run" if single else f"Sweep of {size}" if len(collection.sweeps) == 1 else size.capitalize()
    cards = [single.card] if single else [sweep.card for sweep in collection.sweeps]
    navigation = [(section.key, section.title) for section in found if section.plots]
    return page(
        "report.html",
        command="gep-report",
        title=collection.title,
        plots=[plot for section in found for plot in section.plots],
        filters=FILTERS,
        navigation=[*navigation, ("runs", "Runs"), ("privacy", "Privacy")],
        status=" · ".join(filter(None, [kind, facts.progress(runs), _data(runs, "data: ")])),
        warnings=[*collection.warnings, *filter(None, [facts.not_private_sentence(runs)])],
        best=best,
        best_sentences=facts.best_sentences(collection, best) if best else [],
        sections=found,
        missing=[hint for section in found for hint in section.missing],
        runs=runs,
        single=single,
        unopened=("waiting", "unreadable"),
        statuses={run.status: run.status for run in runs},
        mechanisms={run.mechanism: mechanism_name(run.mechanism) for run in runs if run.mechanism},
        columns=facts.COLUMNS,
        card=_card,
        card_css=Markup(card_css()),
        no_card=_so_far(single) if single else "",
        sweeps=collection.sweeps,
        not_covered=[] if any(card and card.get("not_covered") for card in cards) else facts.not_covered(collection),
    )


def markdown_report(collection: Collection) -> str:
    """The report as Markdown tables, for a paper or a pull request. It has no nonprivate values."""
    runs, single, best = collection.runs, collection.single, facts.best_run(collection.runs)
    statements = [inner(sweep.card, "guarantee", "statement") for sweep in collection.sweeps]
    if single:
        privacy = [inner(single.card, "guarantee", "statement") or _so_far(single)]
    else:
        privacy = [*filter(None, statements), facts.selection_sentence(collection)]
    published = {name: RESULTS[name] for name in dict.fromkeys(run.data for run in runs) if name in RESULTS}
    # Whatever a template inserts is escaped.
    template = templates(finalize=plain).get_template("report.md")
    text = template.render(
        title=collection.title,
        status=" ".join([f"{facts.progress(runs).capitalize()}.", sentence(_data(runs, "Data: "))]),
        warnings=collection.warnings,
        not_private=facts.not_private_sentence(runs),
        means=facts.means([] if single else runs),
        best_sentences=facts.best_sentences(collection, best) if best else [],
        published=[
            (name, Table(["Method", "ε", "ε by PLD", "Test, %"], paper_rows(paper)), remarks(paper))
            for name, paper in published.items()
        ],
        runs=Table([column.title for column in facts.COLUMNS], [_row(run, run is best) for run in runs]),
        errors=[(run.job, facts.error_line(run.error)) for run in runs if run.error],
        privacy=[sentence(str(text)) for text in privacy],
        not_covered=facts.not_covered(collection),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def plain(value: Any) -> str:
    """Text on one line in which nothing is Markdown: no table cell ends, and no link, tag or emphasis begins."""
    line = re.sub(r"\s+", " ", str(value)).strip()
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", line)


def _card(card: Card) -> Markup | None:
    """The card as HTML, without a sweep's list of runs, which the report has itself; None if fields are missing."""
    try:
        return card_html({**card, "runs": None})
    except (TemplateError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _data(runs: list[Run], before: str) -> str:
    names = ", ".join(dict.fromkeys(run.data for run in runs if run.data))
    return f"{before}{names}" if names else ""


def _so_far(run: Run) -> str:
    spent = "an unknown ε" if run.epsilon is None else f"ε = {rounded_up(run.epsilon)} at δ = {short(run.delta)}"
    return f"The run has no privacy card yet. It has spent {spent} so far."


def _row(run: Run, best: bool) -> list[str]:
    cells = facts.cells(run)
    cells["job"] += " (best by validation)" if best else ""
    cells["epsilon"] += " (not private)" if run.not_private else ""
    return list(cells.values())
