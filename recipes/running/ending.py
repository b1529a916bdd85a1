"""How a command ends: a refused setting is one sentence instead of a traceback, and every signal is like Ctrl-C."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lightning_gep.errors import ConfigurationError


def exit_code(program: str, run: Callable[[], int | None]) -> int:
    """What `run` returns, or 0; 2 after printing why a setting was refused."""
    try:
        return run() or 0
    except ConfigurationError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM and a closed terminal (unless nohup ignores it) are like Ctrl-C."""
    stops = [signal.SIGINT, signal.SIGTERM]  # scripts ignore SIGINT in the background, and runs would inherit that
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        stops.append(signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in stops}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
