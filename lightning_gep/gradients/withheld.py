"""Errors that private records cause, without the words that may hold their values."""

from collections.abc import Callable
from traceback import walk_tb
from typing import TypeVar

from lightning_gep.errors import ConfigurationError, PrivateRecordError

T = TypeVar("T")
NOT_THE_USERS = ("torch", "lightning", "opacus", "torchmetrics", "lightning_gep")


def withheld(call: Callable[[], T], what: str, *, reveal: bool) -> T:
    """Return the result of the call. Errors other than this package's are reported by type and location only.

    A message such as "Target 7 is out of bounds" would leak a value of a record. `reveal` raises the error unchanged.
    """
    try:
        return call()
    except ConfigurationError:
        raise
    except Exception as error:
        if reveal:
            raise
        problem = PrivateRecordError(
            f"{what} failed on private records: {type(error).__name__}{_place(error)}. The message is withheld, since "
            "it may hold values of records; GEPStrategy(log_nonprivate=True) shows it. Handle every possible record: a "
            "crash is publicly visible, and no ε covers it."
        )
    raise problem  # out here, or the first error would be shown along with it


def _place(error: Exception) -> str:
    """The line of the user's code that failed."""
    frames = [
        (frame, line)
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in NOT_THE_USERS
    ]
    if not frames:
        return " (in a worker, or outside of your code)"
    frame, line = frames[-1]
    return f" at {frame.f_code.co_filename}:{line} ({frame.f_code.co_name})"
