"""The summary that opens the results page: where GEP and spectral beat GP, and whether that is more than chance."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_gep.reporting.text import NOTHING
from recipes.page.table import accuracy
from recipes.running.outcome import Result, results_of
from recipes.tables.types import Comparison
from recipes.writing import markdown_table

PICTURE = "against_gp.svg"
CHALLENGERS = ("GEP", "spectral")
HEAD = ["", "no privacy", "GP", *CHALLENGERS, *(f"{name} − GP" for name in CHALLENGERS), "runs", "outside"]


@dataclass(frozen=True)
class Difference:
    """How far a mechanism is ahead of GP, in points of test accuracy."""

    points: float
    standard_error: float | None
    """None if either side has a single run."""

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

    @classmethod
    def of(cls, comparison: Comparison, output: Path) -> "Compared":
        """With the results there are."""
        found = results_of(comparison.table, output)
        cells = {"no privacy": comparison.without_privacy, **comparison.cells}
        return cls(comparison.label, {name: found[cell] for name, cell in cells.items()})

    def percentages(self, name: str) -> list[float]:
        """The test accuracies of a mechanism's runs."""
        return [100 * run["test_accuracy"] for run in self.results.get(name, [])]

    def ahead(self, name: str) -> Difference | None:
        """How far a mechanism is ahead of GP; None where it was not run."""
        gp, other = self.percentages("GP"), self.percentages(name)
        if not gp or not other:
            return None
        points = statistics.fmean(other) - statistics.fmean(gp)
        if min(len(gp), len(other)) < 2:
            return Difference(points, None)
        error = math.sqrt(sum(statistics.variance(values) / len(values) for values in (gp, other)))
        return Difference(points, error)

    @property
    def accuracies(self) -> list[str]:
        """Without privacy, then of each mechanism."""
        names = ("no privacy", "GP", *CHALLENGERS)
        return [accuracy(self.results.get(name, []), "test_accuracy") or NOTHING for name in names]

    @property
    def runs(self) -> str:
        """How many there are of each mechanism."""
        return ", ".join(str(len(self.results.get(name, []))) for name in ("GP", *CHALLENGERS))

    @property
    def row(self) -> list[str]:
        """Its row of the summary."""
        return [self.label, *self.accuracies, *(str(self.ahead(name) or NOTHING) for name in CHALLENGERS), self.runs]


def compared(comparisons: Sequence[Comparison], output: Path) -> list[Compared]:
    """The settings in which GP and another mechanism have run."""
    rows = [Compared.of(each, output) for each in comparisons]
    return [row for row in rows if any(row.ahead(name) for name in CHALLENGERS)]


def summary(rows: Sequence[Compared], outside: Mapping[str, float]) -> list[str]:
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
        *markdown_table(HEAD, [[*each.row, _percent(outside.get(each.label))] for each in rows]),
        "",
        "outside: ‖residual‖ / ‖gradient‖ of the records of steps 41 to 50 of GEP's run (root mean square, computed",
        "without noise by `python -m recipes.measured.outside`), how much of them its subspace does not hold.",
        "",
        f"![What GEP and spectral gain over GP, by setting, and by how much lies outside GEP's subspace]({PICTURE})",
    ]


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def _verdict(name: str, rows: Sequence[Compared]) -> list[str]:
    found = [(row.label, ahead.sign) for row in rows if (ahead := row.ahead(name))]
    ahead, behind = ("; ".join(label for label, sign in found if sign == wanted) for wanted in (1, -1))
    first = name[0].upper() + name[1:]
    return [
        f"{first} is ahead of GP by more than twice that error in: {ahead or 'nothing so far'}.",
        f"It is behind by as much in: {behind or 'nothing so far'}.",
    ]
