"""Where output goes: to the terminal, or into a job's own file while a table of all jobs has the terminal."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

STDOUT, STDERR = 1, 2
WIDTH_OF_A_FILE = 120


@contextmanager
def output_into(path: Path) -> Iterator[None]:
    """Inside, everything this process and its children print is appended to a file.

    The descriptors are turned over, not `sys.stdout`: loggers keep the stream they were made with, and child processes
    know of nothing else.
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
    """A console on what is standard output now, whatever `output_into` does to it later."""
    with os.fdopen(os.dup(STDOUT), "w", encoding="utf-8") as file:
        yield Console(file=file) if file.isatty() else Console(file=file, width=WIDTH_OF_A_FILE)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
