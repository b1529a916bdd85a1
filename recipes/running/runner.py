"""Runs the tables' trainings: each a `gep-train` process on one thread, some at a time, continued after a stop."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import OmegaConf

from lightning_gep.arguments import quoted
from lightning_gep.cli.interrupts import handled_by
from lightning_gep.errors import ConfigurationError, MissingDataError
from lightning_gep.reporting.records import RunRecord
from recipes.running.outcome import make_result, read_result, result_file, write_result
from recipes.running.parking import fetch, park
from recipes.running.settings import Settings, composed, overrides_of, run_directory, without_machine
from recipes.tables.types import Run

ROOT = Path(__file__).resolve().parents[2]
LOG = "console.log"
say = partial(print, flush=True)
SECONDS_BETWEEN_LOOKS, SECONDS_BETWEEN_LINES, SECONDS_TO_STOP = 0.5, 300.0, 120.0


@dataclass(frozen=True)
class Places:
    """Where data, working directories and results are. The `extra` overrides are part of every run."""

    data: Path
    work: Path
    output: Path
    extra: tuple[str, ...] = ()
    download: bool = False


class Job:
    """One run with its settings and its working directory. Raises ConfigurationError for a bad configuration."""

    def __init__(self, run: Run, places: Places) -> None:
        self.run, self.places = run, places
        self.config = composed(run, places.extra)
        self.settings: Settings = without_machine(OmegaConf.to_container(self.config, resolve=True))
        self.directory = run_directory(places.work, run, self.settings)
        self.parked = places.output / "unfinished" / self.directory.name

    def is_done(self) -> bool:
        """Whether there is a result with exactly these settings."""
        result = read_result(result_file(self.places.output, self.run))
        return result is not None and result["config"] == self.settings

    def arguments(self) -> list[str]:
        """The arguments of gep-train."""
        where = [f"data.directory={quoted(str(self.places.data))}", f"hydra.run.dir={quoted(str(self.directory))}"]
        download = ["data.download=true"] if self.places.download else []
        return [*overrides_of(self.run, self.places.extra), *download, *where]

    def check_data(self) -> None:
        """Raises MissingDataError if its data files are not there."""
        self.config.data.directory, self.config.data.download = str(self.places.data), self.places.download
        instantiate(self.config.data).check_files()

    def start(self) -> None:
        """Begin, or continue what an earlier attempt left."""
        self.directory.mkdir(parents=True, exist_ok=True)
        fetch(self.parked, self.directory, self.places.data)
        before = RunRecord.read(self.directory)
        say(f"{self.run.name}: {'starts' if before is None else f'continues at step {before.step}'}")
        self.process = start(self.arguments(), self.directory / LOG)

    def failure(self) -> str:
        """Why it failed, in a line."""
        record = RunRecord.read(self.directory)
        if record is not None and record.status == "failed" and record.error:
            return record.error
        return ((self.directory / LOG).read_text(errors="replace").strip() or "gep-train said nothing").splitlines()[-1]

    def __str__(self) -> str:
        """How far it is."""
        record = RunRecord.read(self.directory)
        if record is None:
            return "not run"
        accuracy = record.metrics.get("test/accuracy")
        test = "" if accuracy is None else f", test accuracy {accuracy:.2%}"
        return f"step {record.step} of {record.planned_steps or '?'}, {record.seconds / 60:.1f} min{test}"


@dataclass
class Outcome:
    """The names of runs by how they ended."""

    names: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    by_user: bool = False

    def note(self, kind: str, run: Run, words: str = "") -> None:
        """Record how a run ended, and print it unless nothing happened."""
        self.names[kind].append(run.name)
        if words:
            say(f"{run.name}: {words}")

    @property
    def exit_code(self) -> int:
        """0: all is well; 1: a run failed, or none had its data; 130: interrupted by the user."""
        return 130 if self.by_user else int("failed" in self.names or set(self.names) == {"without data"})

    def __str__(self) -> str:
        return f"Runs: {', '.join(f'{len(names)} {kind}' for kind, names in self.names.items()) or 'none'}."


def work(runs: Sequence[Run], places: Places, *, jobs: int = 2, seconds: float | None = None) -> Outcome:
    """Run what has no result yet, in this order. After `seconds` or a signal, running jobs are stopped and parked."""
    waiting, running, outcome = deque(runs), list[Job](), Outcome()
    end, next_lines = time.monotonic() + (seconds or float("inf")), time.monotonic() + SECONDS_BETWEEN_LINES
    with handled_by(signal.default_int_handler, _stops()):
        try:
            while (waiting or running) and time.monotonic() < end:
                while waiting and len(running) < jobs:
                    job = _prepared(waiting.popleft(), places, outcome)
                    if job is not None:
                        job.start()
                        running.append(job)
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    if not _finished(job, outcome):
                        outcome.note("failed", job.run, f"failed. {job.failure()}")
                if time.monotonic() > next_lines:
                    next_lines = time.monotonic() + SECONDS_BETWEEN_LINES
                    for job in running:
                        say(f"{job.run.name}: {job}")
                if running:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            outcome.by_user = True
        finally:
            _stop(running, outcome)
    return outcome


def _prepared(run: Run, places: Places, outcome: Outcome) -> Job | None:
    """The job of a run, if there is something to do that can be done."""
    try:
        job = Job(run, places)
        if job.is_done():
            return outcome.note("there already", run)
        job.check_data()
    except MissingDataError as error:
        return outcome.note("without data", run, f"not run. {error}")
    except ConfigurationError as error:
        return outcome.note("failed", run, f"failed. {error}")
    return job


def _finished(job: Job, outcome: Outcome) -> bool:
    """Whether the run is finished; if so, its result is written."""
    record = RunRecord.read(job.directory)
    if record is None or record.status != "finished":
        return False
    result = make_result(job.run, record, job.directory, job.settings, job.places.extra)
    write_result(result_file(job.places.output, job.run), result)
    shutil.rmtree(job.parked, ignore_errors=True)
    outcome.note("finished now", job.run, f"finished, {job}")
    return True


def _stop(running: Sequence[Job], outcome: Outcome) -> None:
    """Interrupt all jobs, which makes them save their state, and park them; kill a job that does not end."""
    for job in running:
        job.process.send_signal(signal.SIGINT)
    for job in running:
        try:
            job.process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            job.process.kill()
            job.process.wait()
        if not _finished(job, outcome):
            park(job.directory, job.places.data, job.parked)
            outcome.note("interrupted", job.run, "interrupted; the same command continues it")


def start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """gep-train on one thread, with its output in a file."""
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "lightning_gep.cli.train", *arguments],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
        )


def _stops() -> list[signal.Signals]:
    """Signals that are like Ctrl-C: SIGTERM, and a closed terminal unless nohup ignores it."""
    stops = [signal.SIGINT, signal.SIGTERM]  # scripts ignore SIGINT in the background, and runs would inherit that
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        stops.append(signal.SIGHUP)
    return stops
