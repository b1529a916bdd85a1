"""A live table of a sweep's jobs, read from their records, so that it works wherever the jobs run."""

import threading
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lightning_gep.cli.console import percent
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.records import RunRecord, SweepRecord

SECONDS_BETWEEN_LOOKS = 1.0
LINES_AROUND_THE_TABLE = 8
COLOURS = {"running": "cyan", "failed": "red", "interrupted": "yellow", "finished": "green", "waiting": "dim"}
"""By status, in the order in which a table that is too long shows them."""

Runs = dict[str, RunRecord | None]
"""The record of every job by name; None while a job waits."""


class SweepMonitor:
    """Inside: on a terminal, a table that follows the jobs; otherwise, a line for every change."""

    def __init__(self, directory: Path, console: Console) -> None:
        self.directory, self.console = directory, console
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sweep-monitor", daemon=True)
        self._finished: dict[str, RunRecord] = {}
        self._seen: dict[str, str] = {}

    def __enter__(self) -> "SweepMonitor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _follow(self) -> None:
        if not self.console.is_terminal:
            while not self._done.wait(SECONDS_BETWEEN_LOOKS):
                self._print_changes()
            self._print_changes()
            return
        quiet = {"transient": True, "auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
        with Live(console=self.console, **quiet) as live:  # type: ignore[arg-type]
            while not self._done.wait(SECONDS_BETWEEN_LOOKS):
                runs = self._look()
                height = self.console.height - LINES_AROUND_THE_TABLE
                live.update(outcome_table(list(runs), list(runs.values()), height), refresh=True)

    def _look(self) -> Runs:
        """The records as they are now; those of finished jobs are read once."""
        record = SweepRecord.read(self.directory)
        runs: Runs = {}
        for job in record.jobs if record is not None else []:
            run = runs[job] = self._finished.get(job) or RunRecord.read(self.directory / job)
            if run is not None and run.status == "finished":
                self._finished[job] = run
        return runs

    def _print_changes(self) -> None:
        runs = self._look()
        if runs and not self._seen:
            self._seen = {job: "finished" if _status(run) == "finished" else "waiting" for job, run in runs.items()}
            done = list(self._seen.values()).count("finished")
            if done:
                self.console.print(f"{done} of {len(runs)} jobs are finished already.", highlight=False)
        for number, (job, run) in enumerate(runs.items(), 1):
            status = _status(run)
            if self._seen[job] != status:
                figures = "" if run is None or status == "running" else f": {', '.join(figures_of(run))}"
                self.console.print(Text(f"[{number}/{len(runs)}] {status} {job}{figures}"), soft_wrap=True)
            self._seen[job] = status


def outcome_table(jobs: Sequence[str], runs: Sequence[RunRecord | None], height: int | None = None) -> Table:
    """The jobs with their figures: in order, or within `height` rows with those in progress first."""
    statuses = [_status(run) for run in runs]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in COLOURS if status in statuses)
    table = Table(title=f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}: {counts}", title_justify="left")
    for name in ("job", "status", "steps", "ε", "val", "test", "time"):
        table.add_column(name, justify="left" if name in ("job", "status") else "right", overflow="fold")
    rows = list(zip(jobs, statuses, runs, strict=True))
    if height is not None and len(rows) > height:
        rows = sorted(rows, key=lambda row: list(COLOURS).index(row[1]))[: max(1, height)]
    for job, status, run in rows:
        table.add_row(job, f"[{COLOURS[status]}]{status}[/]", *([] if run is None else _cells(run)))
    if len(rows) < len(jobs):
        table.add_row(f"… and {len(jobs) - len(rows)} more")
    return table


def figures_of(run: RunRecord) -> list[str]:
    """The row of a job in words; for one that failed, the reason."""
    steps, epsilon, validation, test, time = _cells(run)
    found = [f"{steps} steps", f"ε {epsilon}", f"validation {validation}", f"test {test}", time]
    return [run.error or ""] if run.status == "failed" else found


def _status(run: RunRecord | None) -> str:
    return "waiting" if run is None else run.status


def _cells(run: RunRecord) -> list[str]:
    steps = f"{run.step}/{run.planned_steps}" if run.planned_steps else str(run.step)
    epsilon = "" if run.privacy is None else rounded_up(float(run.privacy["epsilon"]))
    accuracies = [percent(run.metrics.get(f"{part}/accuracy")) for part in ("val", "test")]
    return [steps, epsilon, *accuracies, f"{run.seconds:.0f} s"]
