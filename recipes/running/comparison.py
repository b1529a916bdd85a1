"""What a reader takes in within a minute: does GEP help, by how much, and is that more than chance?"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_gep.reporting.text import NOTHING
from recipes.running.cells import Table
from recipes.running.outcome import Result, results_of
from recipes.running.page_table import accuracy, markdown_table

PICTURE = "gep_against_gp.svg"
HEAD = ["", "no privacy", "GP", "GEP", "GEP − GP", "runs"]


@dataclass(frozen=True)
class Pair:
    """A setting in which both mechanisms were run with as much care: the same ε, network and number of trials."""

    label: str
    table: Table
    gp: str
    gep: str
    without_privacy: str


@dataclass(frozen=True)
class Compared:
    """A pair with its results."""

    pair: Pair
    gp: list[Result]
    gep: list[Result]
    baseline: list[Result]

    @property
    def difference(self) -> float:
        """Points of test accuracy by which GEP is ahead."""
        return statistics.fmean(_percent(self.gep)) - statistics.fmean(_percent(self.gp))

    @property
    def standard_error(self) -> float | None:
        """Of the difference; None where a side has one run."""
        sides = [_percent(self.gp), _percent(self.gep)]
        if min(map(len, sides)) < 2:
            return None
        return math.sqrt(sum(statistics.variance(values) / len(values) for values in sides))

    @property
    def row(self) -> list[str]:
        """As the summary shows it."""
        error = self.standard_error
        spread = ", one run" if error is None else f" ± {error:.2f}"
        sides = [accuracy(runs, "test_accuracy") or NOTHING for runs in (self.baseline, self.gp, self.gep)]
        return [self.pair.label, *sides, f"{self.difference:+.2f}{spread}", f"{len(self.gp)}, {len(self.gep)}"]


def compared(pairs: Sequence[Pair], output: Path) -> list[Compared]:
    """The pairs of which both sides are run."""
    found = []
    for pair in pairs:
        results = results_of(pair.table, output)
        if results[pair.gp] and results[pair.gep]:
            baseline = results.get(pair.without_privacy, [])
            found.append(Compared(pair, results[pair.gp], results[pair.gep], baseline))
    return found


def summary(pairs: Sequence[Pair], output: Path) -> list[str]:
    """The section that opens the page; nothing where nothing can be compared."""
    rows = compared(pairs, output)
    if not rows:
        return []
    lines = ["## In a minute", "", *verdict(rows), "", *markdown_table(HEAD, [each.row for each in rows])]
    return [*lines, "", f"![GEP minus GP, in points of test accuracy]({PICTURE})"]


def verdict(rows: Sequence[Compared]) -> list[str]:
    """In words: where the difference is more than twice its standard error."""
    told = [each for each in rows if each.standard_error is not None]
    ahead = [each.pair.label for each in told if each.difference > 2 * (each.standard_error or 0)]
    behind = [each.pair.label for each in told if each.difference < -2 * (each.standard_error or 0)]
    return [
        "Test accuracy in percent, mean ± standard deviation over runs; the difference with its standard error.",
        f"GEP is ahead of GP by more than twice that error in: {'; '.join(ahead) or 'nothing so far'}.",
        f"It is behind by as much in: {'; '.join(behind) or 'nothing so far'}.",
        "Elsewhere the difference may be chance, and a single run says little.",
    ]


def draw(pairs: Sequence[Pair], output: Path) -> None:
    """A row for each pair: the difference, with a bar of two standard errors where there are several runs."""
    from matplotlib.figure import Figure

    from recipes.running.svg import save_svg

    rows = compared(pairs, output)
    if not rows:
        return
    figure = Figure(figsize=(7.5, 0.6 + 0.3 * len(rows)), layout="constrained")
    axis = figure.subplots()
    axis.axvline(0, color="#8a8a8a", linewidth=1)
    for place, each in enumerate(rows):
        error = each.standard_error
        style = {"markerfacecolor": "white"} if error is None else {"xerr": 2 * error, "capsize": 3}
        axis.errorbar([each.difference], [place], fmt="o", color="#1d3557", **style)
    axis.set_yticks(range(len(rows)), [each.pair.label for each in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlabel("GEP minus GP, points of test accuracy (bar: two standard errors; ring: one run)", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    save_svg(figure, output / PICTURE)


def _percent(runs: list[Result]) -> list[float]:
    return [100 * run["test_accuracy"] for run in runs]
