"""The batch size and number of epochs with the least noise at a given ε, before any training."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lightning_gep.cli.plan.costs import NoisePlan, plan_noise
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.settings import PrivacySettings


@dataclass(frozen=True)
class Search:
    """The best rows by each criterion, calibrated, and every candidate."""

    per_step: list[NoisePlan]
    """Least noise per step first."""
    over_run: list[NoisePlan]
    """Least noise of the mean over the run first."""
    cheapest_per_step: NoisePlan
    """The row that reads the fewest records among those whose noise per step is within `SLACK` of the least, by RDP."""
    cheapest_over_run: NoisePlan
    """The same for the noise of the mean."""
    grid: list[NoisePlan]
    """Every candidate, by the RDP bound."""
    too_short: int
    """Number of candidates left out because they have fewer than `min_steps` steps."""

    @property
    def rows(self) -> list[NoisePlan]:
        """Every calibrated row worth showing, once."""
        shown = (*self.per_step, *self.over_run, self.cheapest_per_step, self.cheapest_over_run)
        return list({plan.size: plan for plan in shown}.values())


Tick = Callable[[str, int, int], None]
"""Called with what is being done, and how many of how many are done."""
SLACK = 0.05


def search(
    settings: PrivacySettings,
    size: RunSize,
    *,
    batch_sizes: Sequence[int],
    epochs: Sequence[int],
    min_steps: int,
    best: int = 5,
    labels: Mapping[str, str] | None = None,
    tick: Tick = lambda what, done, total: None,
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
    sizes = list(_candidates(size, batch_sizes, epochs))
    long_enough = [candidate for candidate in sizes if candidate.steps >= min_steps]
    if not long_enough:
        longest = max((candidate.steps for candidate in sizes), default=0)
        raise ConfigurationError(
            f"--min-steps={min_steps} is more than any candidate has; the longest has {longest}. Allow more epochs or "
            "smaller batch sizes, or lower --min-steps."
        )
    by_rdp = replace(settings, accountant="rdp")
    grid = []
    for done, candidate in enumerate(long_enough):
        tick("searching", done, len(long_enough))
        grid.append(plan_noise(by_rdp, candidate, labels))
    ranked = {criterion: sorted(grid, key=criterion) for criterion in (_per_step, _over_run)}
    cheapest = {criterion: _cheapest(rows, criterion) for criterion, rows in ranked.items()}
    firsts = {row.size for rows in ranked.values() for row in rows[:best]} | {row.size for row in cheapest.values()}
    tight: dict[RunSize, NoisePlan] = {}
    for done, candidate in enumerate(sorted(firsts, key=lambda size: size.steps)):
        tick("calibrating", done, len(firsts))
        tight[candidate] = plan_noise(settings, candidate, labels)
    rows = list(tight.values())
    return Search(
        per_step=sorted(rows, key=_per_step)[:best],
        over_run=sorted(rows, key=_over_run)[:best],
        cheapest_per_step=tight[cheapest[_per_step].size],
        cheapest_over_run=tight[cheapest[_over_run].size],
        grid=grid,
        too_short=len(sizes) - len(long_enough),
    )


def default_batch_sizes(num_records: int, devices: int = 1) -> list[int]:
    """Powers of two from about a 256th of the records up to all of them, per device; 16 at the least."""
    largest = max(1, num_records // devices)
    first = max(4, math.ceil(math.log2(largest / 256)))
    return [2**power for power in range(first, largest.bit_length()) if 2**power <= largest] or [largest]


def _candidates(size: RunSize, batch_sizes: Sequence[int], epochs: Sequence[int]) -> Iterator[RunSize]:
    """Every pair once; numbers of epochs that `max_steps` cuts to the same run count as one."""
    seen = set()
    for batch_size in batch_sizes:
        for count in epochs:
            candidate = replace(size, batch_size=batch_size, max_epochs=count)
            if (batch_size, candidate.steps) not in seen:
                seen.add((batch_size, candidate.steps))
                yield candidate


def _cheapest(ranked: Sequence[NoisePlan], criterion: Callable[[NoisePlan], tuple[float, int]]) -> NoisePlan:
    limit = (1 + SLACK) * criterion(ranked[0])[0]
    return min((row for row in ranked if criterion(row)[0] <= limit), key=lambda row: row.records_read)


def _per_step(row: NoisePlan) -> tuple[float, int]:
    return row.noise_per_step, row.records_read


def _over_run(row: NoisePlan) -> tuple[float, int]:
    return row.noise_of_mean, row.records_read
