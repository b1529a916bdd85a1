"""What gep-train prints, and where: the terminal, or a job's own file while the table of a sweep has the terminal."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lightning_gep.privacy.files import CARD_PAGE
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.records import RunRecord

STDOUT, STDERR = 1, 2
WIDTH_OF_A_FILE = 120


@contextmanager
def output_into(path: Path) -> Iterator[None]:
    """Inside, everything that this process and its children print is appended to a file.

    File descriptors are redirected, not `sys.stdout`: loggers keep the stream they were created with, and child
    processes inherit descriptors only.
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
    """A console on the current standard output, unaffected by a later `output_into`."""
    with os.fdopen(os.dup(STDOUT), "w", encoding="utf-8") as file:
        yield Console(file=file) if file.isatty() else Console(file=file, width=WIDTH_OF_A_FILE)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def summary_table(record: RunRecord, directory: Path) -> Table:
    """What a single run prints at its end."""
    table = Table(show_header=False, title="gep-train")
    for name, value in summary_rows(record, directory).items():
        table.add_row(name, value)
    return table


def summary_rows(record: RunRecord, directory: Path) -> dict[str, str]:
    """The rows of the table."""
    privacy = record.privacy or {}
    card = directory / "checkpoints" / CARD_PAGE
    tested = {name.replace("/", " "): value for name, value in record.metrics.items() if name.startswith("test/")}
    return {
        "mechanism": record.config["mechanism"]["mechanism"],
        **{name: percent(value) if "accuracy" in name else f"{value:.4g}" for name, value in tested.items()},
        "ε spent": _spent(privacy),
        **({"δ": f"{privacy['delta']:g}"} if "delta" in privacy else {}),
        "steps": str(privacy["steps"]),
        "training time": f"{record.seconds:.1f} s",
        "outputs": short_path(directory),
        **({} if record.without_privacy else {"privacy card": short_path(card)}),
    }


def percent(share: float | None) -> str:
    """A share as a percentage, or a dash for None."""
    return "–" if share is None else f"{100 * share:.1f} %"


def _spent(privacy: dict[str, Any]) -> str:
    target = privacy.get("target_epsilon")
    if not privacy.get("noise_multiplier"):
        return "∞ (not private: there is no noise)"
    if not privacy["private"]:
        return "∞ (not private: sampling and noise can be repeated)"
    return rounded_up(float(privacy["epsilon"])) + (f" of {target:g}" if target is not None else "")


def short_path(path: Path) -> str:
    """Relative to the current directory, if it is below."""
    absolute, here = path.resolve(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
