"""The batch size and number of epochs with the least noise at a given ε, before any training."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from lightning_gep.cli.plan.costs import NoisePlan, plan_noise
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.settings import PrivacySettings

CRITERIA = {"noise_per_step": "noise per step", "noise_of_mean": "noise of the mean over the run"}
"""What is minimised, by its name in a row, and in words."""
SLACK = 0.05
T = TypeVar("T")


@dataclass(frozen=True)
class Search:
    """What a search found, by criterion. Rows are calibrated by the configured accountant, the grid by RDP."""

    best: dict[str, list[NoisePlan]]
    """Least noise first."""
    cheapest: dict[str, NoisePlan]
    """The row that reads the fewest records among those whose noise is within `SLACK` of the least, by RDP."""
    grid: list[NoisePlan]
    """Every candidate, by the RDP bound."""
    too_short: int
    """Number of candidates left out because they have fewer than `min_steps` steps."""

    @property
    def rows(self) -> list[NoisePlan]:
        """Every calibrated row worth showing, once."""
        shown = (*(row for rows in self.best.values() for row in rows), *self.cheapest.values())
        return list({plan.size: plan for plan in shown}.values())


def search(
    settings: PrivacySettings,
    size: RunSize,
    *,
    batch_sizes: Sequence[int],
    epochs: Sequence[int],
    min_steps: int,
    best: int = 5,
    labels: Mapping[str, str] | None = None,
) -> Search:
    """The pairs of these batch sizes and epochs with the least noise at the ε of `settings` and at least `min_steps`.

    Every candidate is calibrated by the fast RDP bound; the best by each criterion are calibrated again by the
    configured accountant and ranked by that. RDP asks for 4 to 13 % more noise than PLD, not always by the same factor,
    so candidates this close can be missed.
    """
    if settings.epsilon is None:
        raise ConfigurationError(
            "epsilon=None leaves nothing to search for: a given noise multiplier fixes the noise. Set epsilon, and "
            "noise_multiplier to null.",
            setting="epsilon",
        )
    pairs = [replace(size, batch_size=batch_size, max_epochs=count) for batch_size in batch_sizes for count in epochs]
    # Numbers of epochs that `max_steps` cuts to the same run count as one.
    sizes = list({(pair.batch_size, pair.steps): pair for pair in reversed(pairs)}.values())[::-1]
    long_enough = [candidate for candidate in sizes if candidate.steps >= min_steps]
    if not long_enough:
        raise ConfigurationError(
            f"--min-steps={min_steps} is more than any candidate has; the longest has "
            f"{max(candidate.steps for candidate in sizes)}. Allow more epochs or smaller batch sizes, or lower it."
        )
    by_rdp = replace(settings, accountant="rdp")
    grid = [plan_noise(by_rdp, candidate, labels) for candidate in tracked(long_enough, "searching")]
    ranked = {criterion: _ranked(grid, criterion) for criterion in CRITERIA}
    cheapest = {criterion: _cheapest(rows, criterion).size for criterion, rows in ranked.items()}
    firsts = {row.size for rows in ranked.values() for row in rows[:best]} | set(cheapest.values())
    ordered = sorted(firsts, key=lambda size: size.steps)
    tight = {candidate: plan_noise(settings, candidate, labels) for candidate in tracked(ordered, "calibrating")}
    return Search(
        best={criterion: _ranked(tight.values(), criterion)[:best] for criterion in CRITERIA},
        cheapest={criterion: tight[candidate] for criterion, candidate in cheapest.items()},
        grid=grid,
        too_short=len(sizes) - len(long_enough),
    )


def tracked(items: Sequence[T], what: str) -> Iterable[T]:
    """The items one by one, with a progress bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    return track(items, what, console=console, transient=True, disable=not console.is_terminal)


def default_batch_sizes(size: RunSize) -> list[int]:
    """Powers of two from about a 256th of the records up to all of them, per device; 16 at the least."""
    largest = max(1, size.num_records // size.devices)
    first = max(4, math.ceil(math.log2(largest / 256)))
    return [2**power for power in range(first, largest.bit_length()) if 2**power <= largest] or [largest]


def _ranked(rows: Iterable[NoisePlan], criterion: str) -> list[NoisePlan]:
    return sorted(rows, key=lambda row: (getattr(row, criterion), row.records_read))


def _cheapest(ranked: Sequence[NoisePlan], criterion: str) -> NoisePlan:
    limit = (1 + SLACK) * getattr(ranked[0], criterion)
    return min((row for row in ranked if getattr(row, criterion) <= limit), key=lambda row: row.records_read)
