"""What a report states: progress, the best run, what choosing it cost, and the table of runs."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.runs import Collection, Run, inner
from lightning_gep.reporting.text import (
    NOTHING,
    counted,
    duration,
    listed,
    mechanism_name,
    memory,
    one_line,
    percent,
    short,
)

NOT_COMPOSED = (
    "No card counts these runs together. Where they train on the same records, the ε and δ of all of them add up."
)


def progress(runs: list[Run]) -> str:
    """`12 of 18 finished, 1 running, 5 waiting`."""
    if len(runs) == 1:
        return runs[0].status
    counts = Counter(run.status for run in runs)
    finished = f"{counts.pop('finished', 0)} of {len(runs)} finished"
    return ", ".join([finished, *(f"{count} {status}" for status, count in sorted(counts.items()))])


def best_run(runs: Iterable[Run], least: int = 2) -> Run | None:
    """The finished private run with the highest validation accuracy of at least so many. Ignores test accuracy."""
    scores = [
        (accuracy, run)
        for run in runs
        if run.finished and not run.not_private and (accuracy := run.newest("val/accuracy")) is not None
    ]
    return max(scores, key=lambda pair: pair[0])[1] if len(scores) >= least else None


def best_sentences(collection: Collection, best: Run) -> list[str]:
    """Which run is best, and what choosing it cost."""
    return [
        f"Best by validation accuracy: {best.job} ({percent(best.newest('val/accuracy'))} on validation records, "
        f"{percent(best.newest('test/accuracy'))} on test records, ε = {rounded_up(best.epsilon)}). "
        "Test accuracy played no part in the choice.",
        "Choosing it cost privacy: the choice looked at every run, so its own ε alone does not cover it. "
        + selection_sentence(collection),
    ]


def selection_sentence(collection: Collection) -> str:
    """What all runs cost together, as the sweep's card says."""
    card = collection.sweeps[0].card if len(collection.sweeps) == 1 else None
    explanation = inner(card, "selection", "explanation")
    if not explanation:
        return NOT_COMPOSED
    secret = inner(card, "selection", "rule") == "repeat_and_select"
    words = [explanation, inner(card, "share") if secret else None]
    return " ".join(["The sweep's privacy card:", *(one_line(str(text)) for text in words if text)])


def not_private_sentence(runs: list[Run]) -> str:
    """Counts the runs that have no guarantee; empty if all have one."""
    without_noise = [run for run in runs if run.not_private and not run.noise_multiplier]
    seeded = [run for run in runs if run.not_private and run.noise_multiplier]
    parts = [f"{counted(len(without_noise), 'run')} without noise (ε = ∞)"] if without_noise else []
    parts += [f"{counted(len(seeded), 'run')} whose sampling and noise are reproducible"] if seeded else []
    return f"Not private: {listed(parts)}." if parts else ""


@dataclass(frozen=True)
class Column:
    """A column of the table of runs; columns with a `value` are numeric and sort by it."""

    key: str
    title: str
    text: Callable[[Run], str]
    value: Callable[[Run], float | None] | None = None

    def sorts_as(self, run: Run) -> str:
        """The cell's value as JavaScript reads it; unknown numbers are empty and sort last."""
        if self.value is None:
            return self.text(run)
        value = self.value(run)
        return "" if value is None else "Infinity" if value == math.inf else repr(float(value))


def _number(key: str, title: str, show: Callable[[float | None], str], value: Callable[[Run], float | None]) -> Column:
    return Column(key, title, lambda run: show(value(run)), value)


def _spent(run: Run) -> str:
    return rounded_up(run.epsilon) + ("" if run.target_epsilon is None else f" / {run.target_epsilon:g}")


def _steps(run: Run) -> str:
    return NOTHING if run.step is None else f"{run.step}" + (f" / {run.planned_steps}" if run.planned_steps else "")


COLUMNS = [
    Column("job", "Job", lambda run: run.job),
    Column("status", "Status", lambda run: run.status),
    Column("mechanism", "Mechanism", lambda run: mechanism_name(run.mechanism)),
    _number("k", "k", short, lambda run: run.k),
    Column("epsilon", "ε spent / target", _spent, lambda run: run.epsilon),
    _number("delta", "δ", short, lambda run: run.delta),
    _number("validation", "Validation", percent, lambda run: run.newest("val/accuracy")),
    _number("test", "Test", percent, lambda run: run.newest("test/accuracy")),
    Column("steps", "Steps", _steps, lambda run: run.step),
    _number("time", "Time", duration, lambda run: run.seconds or None),
    _number("memory", "Memory", memory, lambda run: run.newest("performance/peak_memory_mb")),
]


def cells(run: Run) -> dict[str, str]:
    """The row of a run in the table of runs."""
    return {column.key: column.text(run) for column in COLUMNS}
