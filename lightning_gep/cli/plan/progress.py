"""How far planning is, for those who wait longer than a moment."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

A_MOMENT = 0.7

Tick = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many are done."""


@contextmanager
def progress() -> Iterator[Tick]:
    """A line on stderr that appears after a moment and is gone at the end; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    line = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = line.add_task("")
    appears = threading.Timer(A_MOMENT, line.start)
    appears.daemon = True
    appears.start()
    try:
        yield lambda what, done, total: line.update(task, description=what, completed=done, total=total)
    finally:
        appears.cancel()
        appears.join()
        line.stop()
