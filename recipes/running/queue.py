"""Runs, some at a time, until all are done, or time is up, or the user has enough."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from lightning_gep.cli.monitor import figures_of
from lightning_gep.errors import ConfigurationError
from recipes.running.cells import Run
from recipes.running.jobs import Job, Places, lacks_data
from recipes.running.outcome import counts, read_result, result_file
from recipes.running.progress import Progress

SECONDS_BETWEEN_LOOKS = 0.5


@dataclass
class Outcome:
    """The names of runs by how they ended; why, for those that did not finish."""

    there_already: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    without_data: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: list[str] = field(default_factory=list)
    by_user: bool = False

    @property
    def exit_code(self) -> int:
        """0 all is well, 1 a run failed or none had its data, 130 interrupted by the user."""
        if self.by_user:
            return 130
        nothing_ran = bool(self.without_data) and not (self.finished or self.there_already or self.interrupted)
        return int(bool(self.failed) or nothing_ran)

    def __str__(self) -> str:
        counts = {
            "there already": self.there_already,
            "finished now": self.finished,
            "interrupted": self.interrupted,
            "without data": self.without_data,
            "failed": self.failed,
        }
        return f"Runs: {', '.join(f'{len(runs)} {kind}' for kind, runs in counts.items() if runs) or 'none'}."


class Queue:
    """Works off runs in their order, `jobs` at a time, and keeps their results. Its `outcome` grows meanwhile."""

    def __init__(self, runs: Iterable[Run], places: Places, progress: Progress, jobs: int = 2) -> None:
        self.waiting, self.running = deque(runs), list[Job]()
        self.places, self.progress, self.jobs = places, progress, jobs
        self.outcome = Outcome()
        self._missing: dict[str, str] = {}

    def work(self, seconds: float | None = None) -> Outcome:
        """Run what has no result yet. After `seconds`, or Ctrl-C, what still runs is interrupted, to go on later."""
        end = None if seconds is None else time.monotonic() + seconds
        try:
            while self.waiting or self.running:
                if end is not None and time.monotonic() > end:
                    self.progress.say("Time is up. The same command goes on.")
                    break
                self._fill()
                if not self._settle():
                    self.progress.show(self.running)
                    time.sleep(SECONDS_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            self.outcome.by_user = True
            self.progress.say("Interrupted. The same command goes on.")
        finally:
            self._stop()
        return self.outcome

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.jobs:
            job = self._next()
            if job is not None:
                self.running.append(job)
                job.start()
                self.progress.say(f"{job.run.name}: {'goes on' if job.resumes else 'starts'}")

    def _next(self) -> Job | None:
        """The job of the next run, if there is something to do for it that can be done."""
        run = self.waiting.popleft()
        try:
            job = Job.of(run, self.places)
        except ConfigurationError as error:
            self._note_failure(run, str(error))
            return None
        if job.is_done():
            self.outcome.there_already.append(run.name)
            return None
        if job.needs in self._missing:
            self._note_missing(job, self._missing[job.needs])
            return None
        before = read_result(result_file(self.places.output, run))
        if before is not None and counts(before, run):
            self.progress.say(f"{run.name}: its settings have changed since there was a result")
        return job

    def _settle(self) -> bool:
        """Note how jobs ended. Whether any did."""
        ended = [job for job in self.running if job.process is not None and job.process.poll() is not None]
        for job in ended:
            self.running.remove(job)
            record = job.keep_result()
            if record is not None:
                self.outcome.finished.append(job.run.name)
                self.progress.say(f"{job.run.name}: finished, {', '.join(figures_of(record))}")
            elif lacks_data(reason := job.reason()):
                self._missing[job.needs] = reason
                self._note_missing(job, reason)
            else:
                self._note_failure(job.run, reason)
        return bool(ended)

    def _note_missing(self, job: Job, reason: str) -> None:
        self.outcome.without_data[job.run.name] = reason
        self.progress.say(f"{job.run.name}: not run. {reason}")

    def _note_failure(self, run: Run, reason: str) -> None:
        self.outcome.failed[run.name] = reason
        self.progress.say(f"{run.name}: failed. {reason}")

    def _stop(self) -> None:
        """Interrupt what still runs: first all, then wait for each."""
        for job in self.running:
            job.stop()
        for job in self.running:
            job.wait()
            if job.keep_result() is not None:  # it was at its very end
                self.outcome.finished.append(job.run.name)
            else:
                job.park()
                self.outcome.interrupted.append(job.run.name)
                self.progress.say(f"{job.run.name}: interrupted")
        self.running.clear()
