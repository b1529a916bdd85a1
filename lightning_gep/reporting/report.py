"""The report of a collection of runs: one HTML page."""

from typing import Any

from jinja2 import TemplateError
from markupsafe import Markup

from lightning_gep.privacy.card import card_css, card_html
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting import facts
from lightning_gep.reporting.figures import sections
from lightning_gep.reporting.pages import page
from lightning_gep.reporting.runs import Card, Collection, Run, inner
from lightning_gep.reporting.text import counted, duration, mechanism_name, short

FILTERS: dict[str, Any] = {
    "epsilon": rounded_up,
    "short": short,
    "duration": duration,
    "cells": facts.cells,
    "statement": lambda card: inner(card, "guarantee", "statement") or "",
    "error_line": facts.error_line,
    "search_words": lambda run: f"{run.job} {run.status} {mechanism_name(run.mechanism)} {run.error or ''}".lower(),
}


def html_report(collection: Collection) -> str:
    """The report as one HTML page."""
    runs, single, best = collection.runs, collection.single, facts.best_run(collection.runs)
    found = sections(collection)
    size, data = counted(len(runs), "run"), ", ".join(dict.fromkeys(run.data for run in runs if run.data))
    kind = "Run" if single else f"Sweep of {size}" if len(collection.sweeps) == 1 else size.capitalize()
    navigation = [(section.key, section.title) for section in found if section.plots]
    return page(
        "report.html",
        command="gep-report",
        title=collection.title,
        plots=[plot for section in found for plot in section.plots],
        filters=FILTERS,
        navigation=[*navigation, ("runs", "Runs"), ("privacy", "Privacy")],
        status=" · ".join(filter(None, [kind, facts.progress(runs), data and f"data: {data}"])),
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
        not_composed=facts.NOT_COMPOSED,
    )


def _card(card: Card) -> Markup | None:
    """The card as HTML, without a sweep's list of runs, which the report has itself; None if fields are missing."""
    try:
        return card_html({**card, "runs": None})
    except (TemplateError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _so_far(run: Run) -> str:
    spent = "an unknown ε" if run.epsilon is None else f"ε = {rounded_up(run.epsilon)} at δ = {short(run.delta)}"
    return f"The run has no privacy card yet. It has spent {spent} so far."
