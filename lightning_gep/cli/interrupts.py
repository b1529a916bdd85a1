"""Ctrl-C and SIGTERM: running jobs save a checkpoint and end, no further job starts, the same command continues."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_stopping = _training = False
"""Of a worker process: whether it was told to stop, and whether a job runs in it."""


def sigterm_as_ctrl_c() -> None:
    """From now on SIGTERM raises KeyboardInterrupt, unless it is handled already, as Slurm's launchers do."""
    default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], Any], signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Inside, these signals go to the handler."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def passed_on_to_workers() -> Iterator[None]:
    """Inside, a first signal interrupts the jobs in worker processes and waits for them; a second one ends at once.

    joblib would kill its workers, and with them the checkpoints that they are saving.
    """
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True
        for worker in multiprocessing.active_children():
            if worker.pid is not None:
                os.kill(worker.pid, signal.SIGINT)

    with handled_by(stop, SIGNALS):
        yield
    if stopped:
        raise KeyboardInterrupt


@contextmanager
def job_in_worker(in_worker: bool) -> Iterator[bool]:
    """Whether the job may start. In a worker a signal ends the job, not the worker, and no further job starts in it."""
    global _training
    if not in_worker:
        yield True
        return
    for number in SIGNALS:
        signal.signal(number, _stop_worker)
    _training = not _stopping
    try:
        yield _training
    except (KeyboardInterrupt, SystemExit):
        if not _stopping:
            raise
    finally:
        _training = False


def _stop_worker(number: int, frame: FrameType | None) -> None:
    global _stopping
    first, _stopping = not _stopping, True
    if first and _training:
        raise KeyboardInterrupt
