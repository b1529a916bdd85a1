"""The report of a collection of runs: one HTML page with everything inside.

The template escapes every value. A policy allows the page's own two scripts and no request to anywhere, so a report
can be mailed or archived.
"""

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup

from lightning_gep.errors import missing_extra
from lightning_gep.privacy.card import card_css, card_html
from lightning_gep.privacy.card.software import version_of
from lightning_gep.privacy.files import now
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting import facts
from lightning_gep.reporting.accuracy import accuracy_plots
from lightning_gep.reporting.curves import curve_sections
from lightning_gep.reporting.plots import Section
from lightning_gep.reporting.runs import Card, Collection, Run, inner
from lightning_gep.reporting.text import counted, duration, mechanism_name, one_line, short

TEMPLATES = Path(__file__).parent / "templates"
LONGEST_ERROR = 160
FILTERS: dict[str, Any] = {
    "epsilon": rounded_up,
    "short": short,
    "duration": duration,
    "cells": facts.cells,
    "statement": lambda card: inner(card, "guarantee", "statement") or "",
    "error_line": lambda error: one_line(error, LONGEST_ERROR),
    "search_words": lambda run: f"{run.job} {run.status} {mechanism_name(run.mechanism)} {run.error or ''}".lower(),
}


def html_report(collection: Collection) -> str:
    """The report. Raises ConfigurationError if plotly is not installed."""
    runs, single, best = collection.runs, collection.single, facts.best_run(collection.runs)
    sections = [Section("results", "Results", accuracy_plots(runs)), *curve_sections(runs)]
    plots = [plot for section in sections for plot in section.plots]
    size, data = counted(len(runs), "run"), ", ".join(dict.fromkeys(run.data for run in runs if run.data))
    kind = "Run" if single else f"Sweep of {size}" if len(collection.sweeps) == 1 else size.capitalize()
    navigation = [(section.key, section.title) for section in sections if section.plots]
    scripts = {"plotly": plotly_script(), "script": script(source("page.js"))}
    return template("report.html").render(
        **scripts,
        policy=policy(scripts.values()),
        css=Markup(source("page.css")),
        card_css=Markup(card_css()),
        drawings=[{name: getattr(plot, name) for name in ("key", "traces", "layout", "height")} for plot in plots],
        version=version_of("lightning_gep") or "(not installed)",
        written=now().replace("T", " ").replace("+00:00", " UTC"),
        title=collection.title,
        navigation=[*navigation, ("runs", "Runs"), ("privacy", "Privacy")],
        status=" · ".join(filter(None, [kind, facts.progress(runs), data and f"data: {data}"])),
        warnings=[*collection.warnings, *filter(None, [facts.not_private_sentence(runs)])],
        best=best,
        best_sentences=facts.best_sentences(collection, best) if best else [],
        sections=sections,
        missing=[hint for section in sections for hint in section.missing],
        runs=runs,
        single=single,
        unopened=("waiting", "unreadable"),
        statuses={run.status: run.status for run in runs},
        mechanisms={run.mechanism: mechanism_name(run.mechanism) for run in runs if run.mechanism},
        columns=facts.COLUMNS,
        card=_card,
        no_card=_so_far(single) if single else "",
        sweeps=collection.sweeps,
        not_composed=facts.NOT_COMPOSED,
    )


def template(name: str) -> Any:
    """A page's template."""
    # HTML is escaped automatically; an undefined name is an error.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return environment.get_template(name)


def source(name: str) -> str:
    """A file of the templates as it is."""
    return (TEMPLATES / name).read_text("utf-8")


def plotly_script() -> Markup:
    """plotly.js. Raises ConfigurationError if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError:
        raise missing_extra("report", "An HTML page with plots") from None
    return script(get_plotlyjs())


def script(text: str) -> Markup:
    """The text of a script element: it cannot end the element early, and line ends are as the browser hashes them."""
    return Markup(text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "\\x3c!--"))


def policy(scripts: Iterable[str]) -> str:
    """A Content-Security-Policy that allows these inline scripts and no request to anywhere."""
    digests = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
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
