"""The summary that opens the results page: where GEP and spectral beat GP, and whether that is more than chance."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_gep.reporting.text import NOTHING
from recipes.page.table import accuracy
from recipes.running.outcome import Result, results_of
from recipes.tables.types import Comparison
from recipes.writing import markdown_table

PICTURE = "against_gp.svg"
CHALLENGERS = ("GEP", "spectral")
HEAD = ["", "no privacy", "GP", *CHALLENGERS, *(f"{name} − GP" for name in CHALLENGERS), "runs"]


@dataclass(frozen=True)
class Difference:
    """How far a mechanism is ahead of GP, in points of test accuracy."""

    points: float
    standard_error: float | None
    """None if either side has a single run."""

    @classmethod
    def between(cls, gp: list[Result], other: list[Result]) -> "Difference":
        """From the runs of both."""
        sides = [[100 * run["test_accuracy"] for run in runs] for runs in (gp, other)]
        points = statistics.fmean(sides[1]) - statistics.fmean(sides[0])
        if min(map(len, sides)) < 2:
            return cls(points, None)
        return cls(points, math.sqrt(sum(statistics.variance(values) / len(values) for values in sides)))

    @property
    def sign(self) -> int:
        """1 or −1 where it is ahead or behind by more than two standard errors, else 0."""
        decided = self.standard_error is not None and abs(self.points) > 2 * self.standard_error
        return int(math.copysign(1, self.points)) if decided else 0

    def __str__(self) -> str:
        return f"{self.points:+.2f}" + (", one run" if self.standard_error is None else f" ± {self.standard_error:.2f}")


@dataclass(frozen=True)
class Compared:
    """A setting with the results of its mechanisms; those that were not run have none."""

    label: str
    results: dict[str, list[Result]]
    baseline: list[Result]

    def ahead(self, name: str) -> Difference | None:
        """How far a mechanism is ahead of GP; None where it was not run."""
        runs = self.results.get(name)
        return Difference.between(self.results["GP"], runs) if runs else None

    @property
    def row(self) -> list[str]:
        """Its row of the summary."""
        mechanisms = [self.results.get(name, []) for name in ("GP", *CHALLENGERS)]
        accuracies = [accuracy(runs, "test_accuracy") or NOTHING for runs in (self.baseline, *mechanisms)]
        differences = [str(self.ahead(name) or NOTHING) for name in CHALLENGERS]
        return [self.label, *accuracies, *differences, ", ".join(str(len(runs)) for runs in mechanisms)]


def compared(comparisons: Sequence[Comparison], output: Path) -> list[Compared]:
    """The settings in which GP and another mechanism have run."""
    rows = []
    for each in comparisons:
        found = results_of(each.table, output)
        results = {name: found[cell] for name, cell in each.cells.items()}
        if results["GP"] and any(results.get(name) for name in CHALLENGERS):
            rows.append(Compared(each.label, results, found.get(each.without_privacy, [])))
    return rows


def summary(rows: Sequence[Compared]) -> list[str]:
    """The section; empty if there is nothing to compare."""
    if not rows:
        return []
    return [
        "## In a minute",
        "",
        "Test accuracy in percent, mean ± standard deviation over runs; differences with their standard error.",
        *(sentence for name in CHALLENGERS for sentence in _verdict(name, rows)),
        "Elsewhere the difference may be chance, and a single run says little.",
        "",
        *markdown_table(HEAD, [each.row for each in rows]),
        "",
        f"![GEP and spectral minus GP, in points of test accuracy]({PICTURE})",
    ]


def _verdict(name: str, rows: Sequence[Compared]) -> list[str]:
    found = [(row.label, ahead.sign) for row in rows if (ahead := row.ahead(name))]
    ahead, behind = ("; ".join(label for label, sign in found if sign == wanted) for wanted in (1, -1))
    first = name[0].upper() + name[1:]
    return [
        f"{first} is ahead of GP by more than twice that error in: {ahead or 'nothing so far'}.",
        f"It is behind by as much in: {behind or 'nothing so far'}.",
    ]
