"""A run as a process: gep-train in a directory of its own, which the same command continues when it was cut."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lightning_gep.reporting.records import RUN_FILE, RunRecord
from lightning_gep.strategy.processes import quoted
from recipes.running.cells import Run
from recipes.running.outcome import make_result, read_result, result_file, write_result
from recipes.running.parking import fetch, park
from recipes.running.settings import Settings, overrides_of, run_directory, settings_of

ROOT = Path(__file__).resolve().parents[2]
LOG = "console.log"
SECONDS_TO_STOP = 120.0


class Process(Protocol):
    """What is asked of a process that runs."""

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""

    def send_signal(self, sig: int) -> None:
        """Interrupt it."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has one."""

    def kill(self) -> None:
        """End it at once."""


@dataclass(frozen=True)
class Places:
    """Where data are, where runs work, and where results go; `extra` overrides are part of every run."""

    data: Path
    work: Path
    output: Path
    extra: tuple[str, ...] = ()
    download: bool = False


@dataclass
class Job:
    """One run with its settings and its directory."""

    run: Run
    places: Places
    settings: Settings
    directory: Path
    process: Process | None = None
    log_begins: int = 0
    resumes: bool = False
    """Whether an earlier attempt has left something to go on from."""
    needs: str = field(init=False)
    """The data it is trained on: what one job misses, all with the same settings for data miss."""

    def __post_init__(self) -> None:
        self.needs = repr(self.settings["data"])

    @classmethod
    def of(cls, run: Run, places: Places) -> "Job":
        """The job of a run. Raises ConfigurationError if its configuration cannot be composed."""
        settings = settings_of(run, places.extra)
        return cls(run, places, settings, run_directory(places.work, run, settings))

    def is_done(self) -> bool:
        """Whether there is a result with the very same settings."""
        result = read_result(result_file(self.places.output, self.run))
        return result is not None and result["config"] == self.settings

    def arguments(self) -> list[str]:
        """The words after gep-train."""
        where = {"data.directory": quoted(str(self.places.data)), "hydra.run.dir": quoted(str(self.directory))}
        download = ["data.download=true"] if self.places.download else []
        overrides = overrides_of(self.run, self.places.extra)
        return [*overrides, *download, *(f"{key}={value}" for key, value in where.items())]

    @property
    def parked(self) -> Path:
        """Where an unfinished run waits to go on, on this machine or another."""
        return self.places.output / "unfinished" / self.directory.name

    def start(self) -> None:
        """Begin, or go on."""
        self.directory.mkdir(parents=True, exist_ok=True)
        fetch(self.parked, self.directory, self.places.data)
        self.resumes = (self.directory / RUN_FILE).exists()
        log = self.directory / LOG
        self.log_begins = log.stat().st_size if log.exists() else 0
        self.process = start(self.arguments(), log)

    def stop(self) -> None:
        """Interrupt it, so that it saves what it has."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Return when it has ended; a process that does not end by itself is killed."""
        if self.process is None:
            return
        try:
            self.process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def park(self) -> None:
        """Keep what an interrupted run needs to go on beside the results, where it can be committed."""
        park(self.directory, self.places.data, self.parked)

    def keep_result(self) -> RunRecord | None:
        """Write the result if the run is finished, and return its record; else None."""
        record = RunRecord.read(self.directory)
        if record is None or record.status != "finished":
            return None
        result = make_result(self.run, record, self.directory, self.settings, self.places.extra)
        write_result(result_file(self.places.output, self.run), result)
        shutil.rmtree(self.parked, ignore_errors=True)
        return record

    def reason(self) -> str:
        """Why it did not finish, in a line."""
        record = RunRecord.read(self.directory)
        if record is not None and record.status == "failed" and record.error:
            return record.error
        with (self.directory / LOG).open("rb") as file:
            file.seek(self.log_begins)
            lines = file.read().decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else f"gep-train ended with exit code {self.process and self.process.poll()}"


def lacks_data(reason: str) -> bool:
    """Whether a job could not begin because its data are not there."""
    return "is not in directory=" in reason


def start(arguments: Sequence[str], log: Path) -> Process:
    """gep-train on one thread, with its output in a file."""
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "lightning_gep.cli.train", *arguments],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
        )
