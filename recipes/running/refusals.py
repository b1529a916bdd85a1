"""A setting that cannot work ends a command with one sentence instead of a traceback."""

import sys
from collections.abc import Callable

from lightning_gep.errors import ConfigurationError


def exit_code(program: str, run: Callable[[], int | None]) -> int:
    """What `run` returns, or 0; 2 after printing why a setting was refused."""
    try:
        return run() or 0
    except ConfigurationError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
