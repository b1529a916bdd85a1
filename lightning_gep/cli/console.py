"""What gep-train prints, and where: the terminal, or a job's own file while the table of a sweep has the terminal."""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lightning_gep.privacy.files import CARD_PAGE
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.facts import COLUMNS
from lightning_gep.reporting.records import RunRecord
from lightning_gep.reporting.runs import run_of
from lightning_gep.reporting.text import percent

STDOUT, STDERR = 1, 2
WIDTH_OF_A_FILE = 120
SECONDS_BETWEEN_LOOKS = 1.0
LINES_AROUND_THE_TABLE = 8
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
    runs: Runs = dict.fromkeys(jobs)
    if console.is_terminal:

        def table() -> Table:
            _look(directory, runs)
            return outcome_table(runs, console.height - LINES_AROUND_THE_TABLE)

        quiet = {"transient": True, "redirect_stdout": False, "redirect_stderr": False}
        with Live(get_renderable=table, console=console, refresh_per_second=1, **quiet):  # type: ignore[arg-type]
            yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_print_changes, args=(directory, runs, console, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def outcome_table(runs: Runs, height: int | None = None) -> Table:
    """The jobs with their figures: in order, or within `height` rows with those in progress first."""
    statuses = [_status(run) for run in runs.values()]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in COLORS if status in statuses)
    table = Table(title=f"{len(runs)} job{'' if len(runs) == 1 else 's'}: {counts}", title_justify="left")
    for name in ("Job", "Status", *(column.title for column in FIGURES)):
        table.add_column(name, justify="left" if name in ("Job", "Status") else "right", overflow="fold")
    rows = list(zip(runs, statuses, runs.values(), strict=True))
    if height is not None and len(rows) > height:
        rows = sorted(rows, key=lambda row: list(COLORS).index(row[1]))[: max(1, height)]
    for job, status, run in rows:
        table.add_row(job, Text(status, style=COLORS[status]), *([] if run is None else _figures(run).values()))
    if len(rows) < len(runs):
        table.add_row(f"… and {len(runs) - len(rows)} more")
    return table


def summary_rows(record: RunRecord, directory: Path) -> dict[str, str]:
    """What a single run prints at its end."""
    privacy = record.privacy or {}
    card = directory / "checkpoints" / CARD_PAGE
    tested = {name.replace("/", " "): value for name, value in record.metrics.items() if name.startswith("test/")}
    return {
        "mechanism": record.config["mechanism"]["mechanism"],
        **{name: percent(value) if "accuracy" in name else f"{value:.4g}" for name, value in tested.items()},
        "ε spent": _spent(record),
        **({"δ": f"{privacy['delta']:g}"} if "delta" in privacy else {}),
        "steps": str(privacy["steps"]),
        "training time": f"{record.seconds:.1f} s",
        "outputs": short_path(directory),
        **({} if record.without_privacy else {"privacy card": short_path(card)}),
    }


def short_path(path: Path) -> str:
    """Relative to the current directory, if it is below."""
    absolute, here = path.resolve(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _print_changes(directory: Path, runs: Runs, console: Console, done: threading.Event) -> None:
    _look(directory, runs)
    seen = {job: "finished" if _status(run) == "finished" else "waiting" for job, run in runs.items()}
    already = list(seen.values()).count("finished")
    if already:
        console.print(f"{already} of {len(runs)} jobs are finished already.", highlight=False)
    over = False
    while not over:
        over = done.wait(SECONDS_BETWEEN_LOOKS)  # and one more look at the end
        _look(directory, runs)
        for number, (job, run) in enumerate(runs.items(), 1):
            if run is not None and run.status != seen[job]:
                figures = ", ".join(f"{name} {figure}" for name, figure in _figures(run).items())
                outcome = {"running": "", "failed": f": {run.error}"}.get(run.status, f": {figures}")
                console.print(Text(f"[{number}/{len(runs)}] {run.status} {job}{outcome}"), soft_wrap=True)
                seen[job] = run.status


def _look(directory: Path, runs: Runs) -> None:
    """Read the records once more, except those of finished jobs."""
    for job, run in runs.items():
        if _status(run) != "finished":
            runs[job] = RunRecord.read(directory / job)


def _status(run: RunRecord | None) -> str:
    return "waiting" if run is None else run.status


def _figures(record: RunRecord) -> dict[str, str]:
    run = run_of(record)
    return {column.title: column.text(run) for column in FIGURES}


def _spent(record: RunRecord) -> str:
    privacy = record.privacy or {}
    target = privacy.get("target_epsilon")
    if not privacy.get("noise_multiplier"):
        return "∞ (not private: there is no noise)"
    if not privacy["private"]:
        return "∞ (not private: sampling and noise can be repeated)"
    return rounded_up(float(privacy["epsilon"])) + (f" of {target:g}" if target is not None else "")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
