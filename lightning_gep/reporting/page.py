"""The report as one HTML page with everything it needs inside."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from string import Template

from lightning_gep.privacy.files import now
from lightning_gep.reporting.embed import Scripts, json_script, resource
from lightning_gep.reporting.facts import best_run, best_sentences, not_private_sentence, progress
from lightning_gep.reporting.figures import sections
from lightning_gep.reporting.load import Collection, Run
from lightning_gep.reporting.markup import paragraphs, tag, text
from lightning_gep.reporting.plot import Section
from lightning_gep.reporting.plot_view import drawn, missing_html, section_html
from lightning_gep.reporting.privacy_view import privacy_section
from lightning_gep.reporting.runs_view import runs_section, templates
from lightning_gep.reporting.text import counted, duration, memory, percent, short, spent


def page(collection: Collection) -> str:
    """The whole page. It asks the network for nothing, and its browser is told to run its own scripts only."""
    found, best = sections(collection), best_run(collection.runs)
    scripts = Scripts()
    parts = {
        "theme": scripts.inline(resource("theme.js")),
        "plotly": scripts.plotly(),
        "script": scripts.inline(resource("report.js")),
        "css": resource("report.css"),
        "version": text(version()),
        "written": text(now().replace("T", " ").replace("+00:00", " UTC")),
        "title": text(collection.title),
        "progress": text(status_line(collection)),
        "warnings": _warnings(collection),
        "navigation": _navigation(found),
        "tiles": _tiles(collection, best),
        "best": _best(collection, best),
        "sections": "\n".join(map(section_html, found)),
        "missing": missing_html(found),
        "runs": runs_section(collection.runs, best),
        "privacy": privacy_section(collection, best),
        "templates": templates(collection.runs),
        "data": json_script("plots", [drawn(plot) for section in found for plot in section.plots]),
    }
    return Template(resource("page.html")).substitute(parts, policy=text(scripts.policy))


def version() -> str:
    """The version of this package, or that it is not installed."""
    try:
        return installed_version("lightning-gep")
    except PackageNotFoundError:
        return "(not installed)"


def status_line(collection: Collection) -> str:
    """What is reported, how far it is, and on which data."""
    runs = collection.runs
    data = ", ".join(dict.fromkeys(run.data for run in runs if run.data))
    size = counted(len(runs), "run")
    kind = "Run" if collection.single else f"Sweep of {size}" if len(collection.sweeps) == 1 else size.capitalize()
    return " · ".join(filter(None, [kind, progress(runs), f"data: {data}" if data else ""]))


def _warnings(collection: Collection) -> str:
    return paragraphs([*collection.warnings, not_private_sentence(collection.runs)], class_="notice", role="note")


def _navigation(found: list[Section]) -> str:
    links = {section.key: section.title for section in found if section.plots}
    return "".join(
        tag("a", text(title), href=f"#{key}") for key, title in {**links, "runs": "Runs", "privacy": "Privacy"}.items()
    )


def _best(collection: Collection, best: Run | None) -> str:
    if best is None:
        return ""
    which, cost = best_sentences(collection, best)
    link = tag("a", "Privacy", href="#privacy")
    return tag("div", tag("p", text(which)), tag("p", text(cost), f" See {link}."), class_="best")


def _tiles(collection: Collection, best: Run | None) -> str:
    """A few large numbers: of the run itself, or of the best by validation accuracy."""
    runs, single = collection.runs, collection.single
    tiles = [] if single else [("Finished", f"{sum(run.finished for run in runs)} / {len(runs)}", "")]
    shown = single or best
    if shown is not None:
        of = "" if single else "of the best run"
        tiles += [
            ("Validation accuracy", percent(shown.newest("val/accuracy")), of),
            ("Test accuracy", percent(shown.newest("test/accuracy")), of),
            ("ε spent / target", spent(shown.epsilon, shown.target_epsilon), f"δ = {short(shown.delta)}"),
        ]
    if single:
        peak = memory(single.newest("performance/peak_memory_mb"))
        tiles += [
            ("Steps", f"{single.step} / {single.planned_steps or '?'}", "taken / planned"),
            ("Training time", duration(single.seconds), f"peak memory {peak}"),
        ]
    else:
        tiles.append(("Training time", duration(sum(run.seconds or 0.0 for run in runs)), "all runs together"))
    return tag("dl", *(_tile(*tile) for tile in tiles), class_="tiles")


def _tile(name: str, value: str, more: str) -> str:
    return tag("div", tag("dt", text(name)), tag("dd", text(value)), tag("dd", text(more), class_="quiet"))
