"""The report of a collection of runs, as an HTML page or as Markdown."""

import re
from typing import Any

from jinja2 import TemplateError
from markupsafe import Markup

from lightning_gep.privacy.card.page import card_css, card_html
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.accuracy import paper_rows
from lightning_gep.reporting.facts import (
    COLUMNS,
    best_run,
    best_sentences,
    composition_sentence,
    error_line,
    means,
    not_covered,
    not_private_sentence,
    progress,
    selection_sentence,
)
from lightning_gep.reporting.figures import sections
from lightning_gep.reporting.pages import page, templates
from lightning_gep.reporting.plots import Table
from lightning_gep.reporting.published import RESULTS, remarks
from lightning_gep.reporting.runs import Card, Collection, Run, Sweep, inner
from lightning_gep.reporting.text import counted, duration, mechanism_name, memory, percent, sentence, short, spent

FILTERS: dict[str, Any] = {
    "epsilon": rounded_up,
    "short": short,
    "statement": lambda card: inner(card, "guarantee", "statement") or "",
    "error_line": error_line,
    "search_words": lambda run: f"{run.job} {run.status} {mechanism_name(run.mechanism)} {run.error or ''}".lower(),
}


def html_report(collection: Collection) -> str:
    """The report as one HTML page."""
    runs, single, best = collection.runs, collection.single, best_run(collection.runs)
    found = sections(collection)
    cards = [single.card] if single else [sweep.card for sweep in collection.sweeps]
    navigation = [(section.key, section.title) for section in found if section.plots]
    return page(
        "report.html",
        command="gep-report",
        title=collection.title,
        plots=[plot for section in found for plot in section.plots],
        filters=FILTERS,
        navigation=[*navigation, ("runs", "Runs"), ("privacy", "Privacy")],
        status=_status(collection),
        warnings=[*collection.warnings, *filter(None, [not_private_sentence(runs)])],
        tiles=_tiles(collection, best),
        best=best,
        best_sentences=best_sentences(collection, best) if best else [],
        sections=found,
        missing=[hint for section in found for hint in section.missing],
        runs=runs,
        single=single,
        unopened=("waiting", "unreadable"),
        statuses={run.status: run.status for run in runs},
        mechanisms={run.mechanism: mechanism_name(run.mechanism) for run in runs if run.mechanism},
        columns=COLUMNS,
        card=_card,
        card_css=Markup(card_css()),
        no_card=_so_far(single) if single else "",
        sweeps=[(sweep, composition_sentence(_runs_of(sweep, runs))) for sweep in collection.sweeps],
        composition=composition_sentence(runs),
        not_covered=[] if any(card and card.get("not_covered") for card in cards) else not_covered(collection),
    )


def markdown_report(collection: Collection) -> str:
    """The report as Markdown tables, for a paper or a pull request. It has no nonprivate values."""
    runs, single, best = collection.runs, collection.single, best_run(collection.runs)
    data = ", ".join(dict.fromkeys(run.data for run in runs if run.data))
    statements = [inner(sweep.card, "guarantee", "statement") for sweep in collection.sweeps]
    if single:
        privacy = [sentence(str(inner(single.card, "guarantee", "statement") or _so_far(single)))]
    else:
        privacy = [*(sentence(str(text)) for text in statements if text), selection_sentence(collection)]
    # Whatever a template inserts is escaped.
    text = (
        templates(finalize=plain)
        .get_template("report.md")
        .render(
            title=collection.title,
            status=f"{progress(runs).capitalize()}." + (f" Data: {data}." if data else ""),
            warnings=collection.warnings,
            not_private=not_private_sentence(runs),
            means=means([] if single else runs),
            best_sentences=best_sentences(collection, best) if best else [],
            published=[
                (name, Table(["Method", "ε", "ε by PLD", "Test, %"], _published(name)), remarks(RESULTS[name]))
                for name in dict.fromkeys(run.data for run in runs)
                if name in RESULTS
            ],
            runs=Table([column.title for column in COLUMNS], [_cells(run, run is best) for run in runs]),
            errors=[(run.job, error_line(run.error)) for run in runs if run.error],
            privacy=privacy,
            not_covered=not_covered(collection),
        )
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


def _status(collection: Collection) -> str:
    runs = collection.runs
    data = ", ".join(dict.fromkeys(run.data for run in runs if run.data))
    size = counted(len(runs), "run")
    kind = "Run" if collection.single else f"Sweep of {size}" if len(collection.sweeps) == 1 else size.capitalize()
    return " · ".join(filter(None, [kind, progress(runs), f"data: {data}" if data else ""]))


def _tiles(collection: Collection, best: Run | None) -> list[tuple[str, str, str]]:
    """A few large numbers: of the single run, or of the best by validation accuracy."""
    runs, single = collection.runs, collection.single
    tiles = [] if single else [("Finished", f"{sum(run.finished for run in runs)} / {len(runs)}", "")]
    if shown := single or best:
        of = "" if single else "of the best run"
        tiles += [
            ("Validation accuracy", percent(shown.newest("val/accuracy")), of),
            ("Test accuracy", percent(shown.newest("test/accuracy")), of),
            ("ε spent / target", spent(shown.epsilon, shown.target_epsilon), f"δ = {short(shown.delta)}"),
        ]
    if single:
        peak = memory(single.newest("performance/peak_memory_mb"))
        return [
            *tiles,
            ("Steps", f"{single.step} / {single.planned_steps or '?'}", "taken / planned"),
            ("Training time", duration(single.seconds), f"peak memory {peak}"),
        ]
    return [*tiles, ("Training time", duration(sum(run.seconds or 0.0 for run in runs)), "all runs together")]


def _so_far(run: Run) -> str:
    spent = "an unknown ε" if run.epsilon is None else f"ε = {rounded_up(run.epsilon)} at δ = {short(run.delta)}"
    return f"The run has no privacy card yet. It has spent {spent} so far."


def _runs_of(sweep: Sweep, runs: list[Run]) -> list[Run]:
    places = {f"{sweep.place}/{job}".lstrip("/") for job in sweep.jobs}
    return [run for run in runs if run.place in places]


def _published(data: str) -> list[list[str]]:
    return [[name, claimed, true, value] for name, claimed, true, _, value in paper_rows(RESULTS[data])]


def _cells(run: Run, best: bool) -> list[str]:
    cells = {column.key: column.text(run) for column in COLUMNS}
    cells["job"] += " (best by validation)" if best else ""
    cells["epsilon"] += " (not private)" if run.not_private else ""
    return list(cells.values())
