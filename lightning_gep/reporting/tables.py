"""The table of runs and the table of means, as plain cells; the page and the Markdown show the same ones."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.cost import peak
from lightning_gep.reporting.grouping import Settings, epsilon_of, grouped, spread
from lightning_gep.reporting.load import Run
from lightning_gep.reporting.plot import Table
from lightning_gep.reporting.text import (
    NOTHING,
    counted,
    duration,
    mechanism_name,
    memory,
    percent,
    short,
    spent,
    with_spread,
)


@dataclass(frozen=True)
class Cell:
    """A cell as text, and as a number where it sorts as one; a number that is not known sorts last."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """A column of the table of runs."""

    key: str
    title: str
    numeric: bool
    cell: Callable[[Run], Cell]


def _steps(run: Run) -> Cell:
    text = str(run.step) if run.planned_steps is None else f"{run.step} / {run.planned_steps}"
    return Cell(NOTHING) if run.status in ("waiting", "unreadable") else Cell(text, run.step)


def _number(text: Callable[[float | None], str], value: Callable[[Run], float | None]) -> Callable[[Run], Cell]:
    return lambda run: Cell(text(value(run)), value(run))


COLUMNS = [
    Column("job", "Job", False, lambda run: Cell(run.job)),
    Column("status", "Status", False, lambda run: Cell(run.status)),
    Column("mechanism", "Mechanism", False, lambda run: Cell(mechanism_name(run.mechanism))),
    Column("k", "k", True, lambda run: Cell(short(run.k), run.k)),
    Column("epsilon", "ε spent / target", True, lambda run: Cell(spent(run.epsilon, run.target_epsilon), run.epsilon)),
    Column("delta", "δ", True, _number(short, lambda run: run.delta)),
    Column("validation", "Validation", True, _number(percent, lambda run: run.newest("val/accuracy"))),
    Column("test", "Test", True, _number(percent, lambda run: run.newest("test/accuracy"))),
    Column("steps", "Steps", True, _steps),
    Column("time", "Time", True, _number(duration, lambda run: run.seconds or None)),
    Column("memory", "Memory", True, _number(memory, peak)),
]


def means(runs: list[Run]) -> Table:
    """Mean ± standard deviation over the seeds of every setting with finished runs, in percent."""
    finished = [run for run in runs if run.finished]
    settings = Settings(runs)
    columns = ["Setting", "ε", "ε spent, at most", "δ", "Runs", "Validation, %", "Test, %"]
    groups = grouped(finished, lambda run: f"{settings.data(run)}{settings.name(run)}\n{rounded_up(epsilon_of(run))}")
    rows = [
        [
            *key.split("\n"),
            rounded_up(max((run.epsilon for run in members if run.epsilon is not None), default=None)),
            ", ".join(sorted({short(run.delta) for run in members})),
            str(len(members)),
            _mean(members, "val/accuracy"),
            _mean(members, "test/accuracy"),
        ]
        for key, members in sorted(groups.items(), key=lambda item: _order(item[1][0], item[0]))
    ]
    return Table(columns, rows)


def _order(run: Run, key: str) -> tuple[str, str, float, float, str]:
    return run.data, run.mechanism, run.k or 0, epsilon_of(run) or math.inf, key


def _mean(runs: list[Run], name: str) -> str:
    values = [100 * value for run in runs if (value := run.newest(name)) is not None]
    if not values:
        return NOTHING
    text = with_spread(*spread(values), 2)
    return text if len(values) == len(runs) else f"{text} ({counted(len(values), 'run')})"


def error_line(error: str) -> str:
    """The line of an error that says what went wrong; of a traceback that is the last."""
    lines = [line.strip() for line in error.splitlines() if line.strip()] or [""]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line if len(line) <= 160 else f"{line[:159]}…"
