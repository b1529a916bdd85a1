"""The same facts as Markdown tables, for a paper or a pull request."""

import re

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.accuracy import paper_rows
from lightning_gep.reporting.facts import (
    best_run,
    best_sentences,
    not_covered,
    not_private_sentence,
    progress,
    selection_sentence,
)
from lightning_gep.reporting.load import Collection, Run, inner
from lightning_gep.reporting.plot import Table
from lightning_gep.reporting.published import RESULTS, remarks
from lightning_gep.reporting.tables import COLUMNS, error_line, means
from lightning_gep.reporting.text import sentence, short

SPREAD_NOTE = "Mean ± standard deviation (n − 1) over the seeds of a setting; finished runs only."


def markdown(collection: Collection) -> str:
    """The report, ending in a line break."""
    best = best_run(collection.runs)
    blocks = [
        f"# {plain(collection.title)}",
        plain(_status(collection)),
        *(f"**Warning:** {plain(text)}" for text in collection.warnings),
        *([f"**{plain(text)}**"] if (text := not_private_sentence(collection.runs)) else []),
        *_results(collection),
        *(["\n".join(f"- {plain(text)}" for text in best_sentences(collection, best))] if best else []),
        *_published(collection),
        "## Runs",
        table(_runs(collection.runs, best)),
        *_errors(collection.runs),
        "## Privacy",
        *(plain(text) for text in privacy_paragraph(collection)),
        "### Not covered",
        "\n".join(f"- {plain(text)}" for text in not_covered(collection)),
    ]
    return "\n\n".join(blocks) + "\n"


def plain(text: str) -> str:
    """Text on one line in which nothing is markup: no table cell ends, no link, tag or emphasis begins."""
    line = re.sub(r"\s+", " ", text).strip()
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", line)


def table(content: Table) -> str:
    """A Markdown table."""
    rows = [content.columns, ["---"] * len(content.columns), *content.rows]
    return "\n".join(f"| {' | '.join(plain(cell) for cell in row)} |" for row in rows)


def privacy_paragraph(collection: Collection) -> list[str]:
    """The guarantee in words: the card's statement, or what is known without a card; then what choosing cost."""
    single = collection.single
    if single is not None:
        return [_statement(single)]
    said = [sentence(str(text)) for sweep in collection.sweeps if (text := inner(sweep.card, "guarantee", "statement"))]
    return [*said, selection_sentence(collection)]


def _statement(run: Run) -> str:
    said = inner(run.card, "guarantee", "statement")
    if said:
        return sentence(str(said))
    return f"The run has no privacy card yet; it has spent ε = {rounded_up(run.epsilon)} at δ = {short(run.delta)}."


def _status(collection: Collection) -> str:
    data = ", ".join(dict.fromkeys(run.data for run in collection.runs if run.data))
    return f"{progress(collection.runs).capitalize()}." + (f" Data: {data}." if data else "")


def _results(collection: Collection) -> list[str]:
    found = means(collection.runs)
    return ["## Results", SPREAD_NOTE, table(found)] if found.rows and not collection.single else []


def _published(collection: Collection) -> list[str]:
    blocks: list[str] = []
    for data in dict.fromkeys(run.data for run in collection.runs):
        if data in RESULTS:
            rows = [[name, claimed, true, value] for name, claimed, true, _, value in paper_rows(RESULTS[data])]
            columns = ["Method", "ε", "ε by PLD", "Test, %"]
            blocks += [f"### Published, {data}", table(Table(columns, rows)), *map(plain, remarks(RESULTS[data]))]
    return blocks


def _runs(runs: list[Run], best: Run | None) -> Table:
    return Table([column.title for column in COLUMNS], [_row(run, run is best) for run in runs])


def _row(run: Run, best: bool) -> list[str]:
    cells = {column.key: column.cell(run).text for column in COLUMNS}
    if best:
        cells["job"] += " (best by validation)"
    if run.not_private:
        cells["epsilon"] += " (not private)"
    return list(cells.values())


def _errors(runs: list[Run]) -> list[str]:
    lines = [f"- {plain(run.job)}: {plain(error_line(run.error))}" for run in runs if run.error]
    return ["### Errors", "\n".join(lines)] if lines else []
