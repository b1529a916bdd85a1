"""A live table of a sweep's jobs, read from their records: it works wherever the jobs run."""

import threading
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lightning_gep.cli.summary import percent
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.records import RunRecord, SweepRecord

SECONDS_BETWEEN_LOOKS = 1.0
LINES_AROUND_THE_TABLE = 8
COLOURS = {"running": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow", "waiting": "dim"}
ORDER = ["running", "failed", "interrupted", "finished", "waiting"]


class SweepMonitor:
    """While inside: a table that follows the jobs on a terminal, a line for every change elsewhere."""

    def __init__(self, directory: Path, console: Console) -> None:
        self.directory, self.console = directory, console
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sweep-monitor", daemon=True)
        self._final: dict[str, RunRecord] = {}
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
        with Live(
            console=self.console, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            while not self._done.wait(SECONDS_BETWEEN_LOOKS):
                jobs, runs = self._look()
                live.update(outcome_table(jobs, runs, self.console.height - LINES_AROUND_THE_TABLE), refresh=True)

    def _look(self) -> tuple[list[str], list[RunRecord | None]]:
        record = SweepRecord.read(self.directory)
        jobs = record.jobs if record is not None else []
        for job in jobs:
            run = None if job in self._final else RunRecord.read(self.directory / job)
            if run is not None and run.status == "finished":
                self._final[job] = run
        return jobs, [self._final.get(job) or RunRecord.read(self.directory / job) for job in jobs]

    def _print_changes(self) -> None:
        jobs, runs = self._look()
        if jobs and not self._seen:
            self._seen = {
                job: "finished" if run is not None and run.status == "finished" else "waiting"
                for job, run in zip(jobs, runs, strict=True)
            }
            done = sum(status == "finished" for status in self._seen.values())
            if done:
                self.console.print(f"{done} of {len(jobs)} jobs are finished already.", highlight=False)
        for number, (job, run) in enumerate(zip(jobs, runs, strict=True), 1):
            status = status_of(run)
            if self._seen[job] != status:
                figures = "" if run is None or status == "running" else f": {', '.join(figures_of(run))}"
                self.console.print(Text(f"[{number}/{len(jobs)}] {status} {job}{figures}"), soft_wrap=True)
            self._seen[job] = status


def outcome_table(jobs: Sequence[str], runs: Sequence[RunRecord | None], height: int | None = None) -> Table:
    """The jobs with their figures: in order, or within `height` rows with those under way first."""
    counts = {status: sum(status_of(run) == status for run in runs) for status in ORDER}
    title = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    table = Table(title=f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}: {title}", title_justify="left")
    for name in ("job", "status", "steps", "ε", "val", "test", "time"):
        table.add_column(name, justify="left" if name in ("job", "status") else "right", overflow="fold")
    rows = list(zip(jobs, runs, strict=True))
    if height is not None and len(rows) > height:
        rows = sorted(rows, key=lambda row: ORDER.index(status_of(row[1])))[: max(1, height)]
    for job, run in rows:
        status = status_of(run)
        cells = _cells(run) if run is not None else ["", "", "", "", ""]
        table.add_row(job, f"[{COLOURS[status]}]{status}[/]", *cells)
    if len(rows) < len(jobs):
        table.add_row(f"… and {len(jobs) - len(rows)} more", "", "", "", "", "", "")
    return table


def status_of(run: RunRecord | None) -> str:
    """The status of a job, which waits while it has no record."""
    return "waiting" if run is None else run.status


def _cells(run: RunRecord) -> list[str]:
    steps = f"{run.step}/{run.planned_steps}" if run.planned_steps else str(run.step)
    epsilon = "" if run.privacy is None else rounded_up(float(run.privacy["epsilon"]))
    accuracies = [percent(run.metrics.get(f"{part}/accuracy")) for part in ("val", "test")]
    return [steps, epsilon, *accuracies, f"{run.seconds:.0f} s"]


def figures_of(run: RunRecord) -> list[str]:
    """The row of a job in words; of one that failed, why."""
    steps, epsilon, validation, test, time = _cells(run)
    found = [f"{steps} steps", f"ε {epsilon}", f"validation {validation}", f"test {test}", time]
    return [run.error or ""] if run.status == "failed" else found
