"""How a command is stopped: every signal is like Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from lightning_gep.cli.interrupts import handled_by


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM and a closed terminal (unless nohup ignores it) are like Ctrl-C."""
    stops = [signal.SIGINT, signal.SIGTERM]  # scripts ignore SIGINT in the background, and runs would inherit that
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        stops.append(signal.SIGHUP)
    with handled_by(signal.default_int_handler, stops):
        yield
