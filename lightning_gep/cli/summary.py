"""What a run says at its end."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Outcome:
    """The result of one run; `privacy` is the report of its privacy account."""

    mechanism: str
    test_accuracy: float
    privacy: dict[str, Any]
    seconds: float
    output_dir: str


def summary_table(outcome: Outcome) -> Table:
    """A short table for people."""
    table = Table(show_header=False, title="gep-train")
    for name, value in summary_rows(outcome).items():
        table.add_row(name, value)
    return table


def summary_rows(outcome: Outcome) -> dict[str, str]:
    """The rows of the table. ε is rounded up, so that no more is promised than was kept."""
    privacy = outcome.privacy
    return {
        "mechanism": outcome.mechanism,
        "test accuracy": f"{100 * outcome.test_accuracy:.1f} %",
        "ε spent": _spent(privacy),
        "δ": f"{privacy['delta']:g}",
        "steps": str(privacy["steps"]),
        "training time": f"{outcome.seconds:.1f} s",
        "outputs": _short_path(outcome.output_dir),
    }


def _spent(privacy: dict[str, Any]) -> str:
    epsilon, target = privacy["epsilon"], privacy["target_epsilon"]
    if math.isinf(epsilon):
        return "∞ (not private: there is no noise)"
    spent = f"{math.ceil(1000 * epsilon) / 1000:g}" + (f" of {target:g}" if target is not None else "")
    return spent if privacy["private"] else f"{spent} (not private: sampling and noise can be repeated)"


def _short_path(path: str) -> str:
    """Relative to where the command was started, if it is below."""
    absolute, here = Path(path).resolve(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
