"""What gep-train prints, and where: the terminal, or a job's own file while the table of a sweep has the terminal."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lightning_gep.privacy.files import CARD_PAGE
from lightning_gep.reporting.facts import COLUMNS, not_private_sentence
from lightning_gep.reporting.records import RunRecord
from lightning_gep.reporting.runs import run_of
from lightning_gep.reporting.text import NOTHING, counted

STDOUT, STDERR = 1, 2
WIDTH_OF_A_FILE = 120
SECONDS_BETWEEN_LOOKS = 1.0
LINES_AROUND = 8
COLORS = {"running": "cyan", "failed": "red", "interrupted": "yellow", "finished": "green", "waiting": "dim"}
"""By status, in the order in which a table that is too long shows them."""

FIGURES = [column for column in COLUMNS if column.key in ("epsilon", "validation", "test", "steps", "time")]

Runs = dict[str, RunRecord | None]
"""The record of every job by name; None while a job waits."""


@contextmanager
def output_into(path: Path) -> Iterator[None]:
    """Inside, everything that this process and its children print is appended to a file.

    File descriptors are redirected, not `sys.stdout`: loggers keep the stream they were created with, and child
    processes inherit descriptors only.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {number: os.dup(number) for number in (STDOUT, STDERR)}
    _flush()
    try:
        with path.open("ab") as file:
            for number in kept:
                os.dup2(file.fileno(), number)
            yield
    finally:
        _flush()
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)


@contextmanager
def terminal() -> Iterator[Console]:
    """A console on the current standard output, unaffected by a later `output_into`."""
    with os.fdopen(os.dup(STDOUT), "w", encoding="utf-8") as file:
        yield Console(file=file) if file.isatty() else Console(file=file, width=WIDTH_OF_A_FILE)


@contextmanager
def watched(directory: Path, jobs: Sequence[str], console: Console) -> Iterator[None]:
    """Inside: on a terminal, a table that follows the jobs of a sweep; otherwise, a line for every change.

    Both read the records of the jobs, so they work wherever the jobs run.
    """
    if console.is_terminal:

        def table() -> Table:
            return outcome_table({job: RunRecord.read(directory / job) for job in jobs}, console.height - LINES_AROUND)

        quiet = {"transient": True, "redirect_stdout": False, "redirect_stderr": False}
        with Live(get_renderable=table, console=console, refresh_per_second=1, **quiet):  # type: ignore[arg-type]
            yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_print_changes, args=(directory, jobs, console, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def outcome_table(runs: Runs, height: int | None = None) -> Table:
    """The jobs with their figures: in order, or within `height` rows with those in progress first."""
    statuses: dict[str, str] = {job: "waiting" if run is None else run.status for job, run in runs.items()}
    counts = Counter[str](statuses.values())
    title = f"{counted(len(runs), 'job')}: {', '.join(f'{counts[each]} {each}' for each in COLORS if each in counts)}"
    table = Table("Job", "Status", title=title, title_justify="left")
    for column in FIGURES:
        table.add_column(column.title, justify="right", overflow="fold")
    shown = list(runs)
    if height is not None and len(shown) > height:
        shown = sorted(shown, key=lambda job: list(COLORS).index(statuses[job]))[: max(1, height)]
    for job in shown:
        run, status = runs[job], Text(statuses[job], style=COLORS[statuses[job]])
        table.add_row(job, status, *([] if run is None else _figures(run).values()))
    if len(shown) < len(runs):
        table.add_row(f"… and {len(runs) - len(shown)} more")
    return table


def summary_rows(record: RunRecord, directory: Path) -> dict[str, str]:
    """What a single run prints at its end."""
    run, card = run_of(record), directory / "checkpoints" / CARD_PAGE
    named = {"validation": "Validation accuracy", "test": "Test accuracy"}
    columns = [column for column in COLUMNS if column.key not in ("job", "status")]
    figures = {named.get(column.key, column.title): column.text(run) for column in columns}
    others = {name: f"{value:.4g}" for name, value in record.metrics.items() if name.startswith("test/")}
    others.pop("test/accuracy", None)
    return {
        **{name: text for name, text in figures.items() if text != NOTHING},
        **others,
        **({"Privacy": not_private_sentence([run])} if run.not_private else {}),
        "Outputs": short_path(directory),
        **({} if record.without_privacy else {"Privacy card": short_path(card)}),
    }


def short_path(path: Path) -> str:
    """Relative to the current directory, if it is below."""
    absolute, here = path.resolve(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _print_changes(directory: Path, jobs: Sequence[str], console: Console, done: threading.Event) -> None:
    before = {job: RunRecord.read(directory / job) for job in jobs}
    seen: dict[str, str] = {
        job: run.status for job, run in before.items() if run is not None and run.status == "finished"
    }
    if seen:
        console.print(f"{len(seen)} of {len(jobs)} jobs are finished already.", highlight=False)
    over = False
    while not over:
        over = done.wait(SECONDS_BETWEEN_LOOKS)  # and one more look at the end
        for number, job in enumerate(jobs, 1):
            run = None if seen.get(job) == "finished" else RunRecord.read(directory / job)
            if run is not None and run.status != seen.get(job):
                figures = ", ".join(f"{name} {figure}" for name, figure in _figures(run).items())
                outcome = {"running": "", "failed": f": {run.error}"}.get(run.status, f": {figures}")
                console.print(Text(f"[{number}/{len(jobs)}] {run.status} {job}{outcome}"), soft_wrap=True)
                seen[job] = run.status


def _figures(record: RunRecord) -> dict[str, str]:
    run = run_of(record)
    return {column.title: column.text(run) for column in FIGURES}


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
