"""Settings that cannot work end a recipe in a sentence, not in a traceback."""

import sys
from collections.abc import Callable

from lightning_gep.errors import ConfigurationError


def exit_code(program: str, run: Callable[[], int | None]) -> int:
    """What `run` returns, 0 for nothing; 2 if it refuses its settings, after printing why."""
    try:
        return run() or 0
    except ConfigurationError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
