"""What is seen of runs under way: a table of them on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lightning_gep.cli.console import WIDTH_OF_A_FILE
from lightning_gep.cli.monitor import figures_of, outcome_table
from lightning_gep.reporting.records import RunRecord
from recipes.running.jobs import Job
from recipes.running.outcome import curves

SECONDS_BETWEEN_LINES = 60.0


class Progress:
    """While inside, `show` says how far jobs are, and `say` prints a line that stays."""

    def __init__(self, console: Console | None = None) -> None:
        console = Console() if console is None else console
        self.console = console if console.is_terminal else Console(file=console.file, width=WIDTH_OF_A_FILE)
        self._live = Live(console=self.console, transient=True, auto_refresh=False)
        self._next_lines = time.monotonic() + SECONDS_BETWEEN_LINES

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """A line that stays. It is shown as it is, whatever brackets are in it."""
        self.console.print(Text(line), soft_wrap=True)

    def show(self, jobs: Sequence[Job]) -> None:
        """How far the jobs are."""
        if self.console.is_terminal:
            self._live.update(outcome_table([job.run.name for job in jobs], [seen(job) for job in jobs]), refresh=True)
        elif time.monotonic() > self._next_lines:
            self._next_lines = time.monotonic() + SECONDS_BETWEEN_LINES
            for job in jobs:
                record = seen(job)
                self.say(f"{job.run.name}: {'starting' if record is None else ', '.join(figures_of(record))}")


def seen(job: Job) -> RunRecord | None:
    """The record of a running job, with the newest test accuracy; None until it has one."""
    record = RunRecord.read(job.directory)
    if record is None:
        return None
    record.status = "running"  # while it is starting again, its record is still that of the attempt before
    points = curves(job.directory, record.step).get("test_accuracy")
    if points:
        record.metrics["test/accuracy"] = points[-1][1]
    return record
