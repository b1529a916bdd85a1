"""Seconds of a step, and memory of a process, as the operating system sees it."""

import logging
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

MEGABYTE = 2**20


@dataclass
class Measured:
    """One process' figures: seconds of each step, memory before the steps and the most during them, in MB."""

    seconds: list[float] = field(default_factory=list)
    baseline_mb: float = 0.0
    peak_mb: float = 0.0


class Clock:
    """Times what happens between calls; the first `skip` intervals are warm-up and not kept.

    `now` may be `time.process_time`, where other work on the machine should count little.
    """

    def __init__(self, skip: int = 1, now: Callable[[], float] = time.perf_counter) -> None:
        self.measured = Measured()
        self._skip, self._now, self._last = skip, now, now()

    def start(self) -> None:
        """Everything is set up: from now on memory counts."""
        self.measured.baseline_mb = memory_mb("VmRSS")
        reset_peak()
        self._last = self._now()

    def tick(self) -> None:
        """A step has ended."""
        now = self._now()
        if self._skip > 0:
            self._skip -= 1
        else:
            self.measured.seconds.append(now - self._last)
        self.measured.peak_mb = memory_mb("VmHWM")
        self._last = self._now()


def memory_mb(what: str) -> float:
    """A line of /proc/self/status: VmRSS is memory in use, VmHWM the most there was."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, "Linux only"
    return int(found[1]) * 1024 / MEGABYTE


def reset_peak() -> None:
    """Let the high-water mark begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def laps(seconds: list[float], length: int) -> Iterator[float]:
    """Mean seconds of a step over whole laps of `length` steps: a basis is refreshed in one step of several."""
    for i in range(0, len(seconds) - length + 1, length):
        yield sum(seconds[i : i + length]) / length


@contextmanager
def quietly_elsewhere() -> Iterator[None]:
    """Inside, the working directory is temporary, Lightning is silent, and torch is seeded."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(before)
