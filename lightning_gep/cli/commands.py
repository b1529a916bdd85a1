"""What the commands share: options, types of arguments, and errors as one line on stderr with exit code 2."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from lightning_gep.errors import ConfigurationError, missing_extra


def overrides_parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """The parser of a command that takes the overrides of gep-train, and writes its figures as JSON."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as for gep-train; commas give several values"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


@contextmanager
def errors_in_a_line(command: str) -> Iterator[None]:
    """Inside, a setting that cannot work and a file that cannot be used end the command."""
    try:
        yield
    except (ConfigurationError, OSError) as error:
        message = " ".join(str(error).split())
        if isinstance(error, OSError) and error.filename:
            message = f"{error.filename}: {error.strerror}. Give a path that can be read and written."
        sys.stderr.write(f"{command}: {message}\n")
        raise SystemExit(2) from None


def check_cli_extra(command: str) -> None:
    """Raises ConfigurationError if Hydra or rich is not installed."""
    if find_spec("hydra") is None or find_spec("rich") is None:
        raise missing_extra("cli", command)
