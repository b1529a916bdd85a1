"""The summary that opens the results page: where GEP beats GP, by how much, and whether that is more than chance."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_gep.reporting.text import NOTHING
from recipes.page.table import accuracy
from recipes.running.outcome import Result, results_of
from recipes.tables.types import Pair
from recipes.writing import markdown_table

PICTURE = "gep_against_gp.svg"
HEAD = ["", "no privacy", "GP", "GEP", "GEP − GP", "runs"]


@dataclass(frozen=True)
class Compared:
    """A pair with its results."""

    label: str
    gp: list[Result]
    gep: list[Result]
    baseline: list[Result]

    @property
    def difference(self) -> float:
        """Points of test accuracy by which GEP is ahead."""
        return statistics.fmean(_percent(self.gep)) - statistics.fmean(_percent(self.gp))

    @property
    def standard_error(self) -> float | None:
        """The standard error of the difference; None if either side has a single run."""
        sides = [_percent(self.gp), _percent(self.gep)]
        if min(map(len, sides)) < 2:
            return None
        return math.sqrt(sum(statistics.variance(values) / len(values) for values in sides))

    @property
    def sign(self) -> int:
        """1 or −1 where GEP is ahead or behind by more than two standard errors, else 0."""
        error = self.standard_error
        return 0 if error is None or abs(self.difference) <= 2 * error else int(math.copysign(1, self.difference))

    @property
    def row(self) -> list[str]:
        """Its row of the summary."""
        error = self.standard_error
        spread = ", one run" if error is None else f" ± {error:.2f}"
        sides = [accuracy(runs, "test_accuracy") or NOTHING for runs in (self.baseline, self.gp, self.gep)]
        return [self.label, *sides, f"{self.difference:+.2f}{spread}", f"{len(self.gp)}, {len(self.gep)}"]


def compared(pairs: Sequence[Pair], output: Path) -> list[Compared]:
    """The pairs with results on both sides."""
    results = [(pair, results_of(pair.table, output)) for pair in pairs]
    return [
        Compared(pair.label, found[pair.gp], found[pair.gep], found.get(pair.without_privacy, []))
        for pair, found in results
        if found[pair.gp] and found[pair.gep]
    ]


def summary(rows: Sequence[Compared]) -> list[str]:
    """The section; empty if there is nothing to compare."""
    if not rows:
        return []
    ahead, behind = ("; ".join(each.label for each in rows if each.sign == sign) for sign in (1, -1))
    return [
        "## In a minute",
        "",
        "Test accuracy in percent, mean ± standard deviation over runs; the difference with its standard error.",
        f"GEP is ahead of GP by more than twice that error in: {ahead or 'nothing so far'}.",
        f"It is behind by as much in: {behind or 'nothing so far'}.",
        "Elsewhere the difference may be chance, and a single run says little.",
        "",
        *markdown_table(HEAD, [each.row for each in rows]),
        "",
        f"![GEP minus GP, in points of test accuracy]({PICTURE})",
    ]


def _percent(runs: list[Result]) -> list[float]:
    return [100 * run["test_accuracy"] for run in runs]
