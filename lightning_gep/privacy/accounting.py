"""Privacy accounting: a step is one event, and accountants turn a history of events into ε.

Every ε is an upper bound, at some δ, for adding or removing one record.
"""

import bisect
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import accumulate
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from lightning_gep.arguments import not_negative, one_of
from lightning_gep.errors import ConfigurationError, missing_extra

LARGEST_TIGHT_EPSILON = 50.0
"""Above it the grids of PLD and PRV grow without bound and ε protects nobody: RDP's bound is returned instead."""
SMALLEST_PLD_DELTA, SMALLEST_PRV_DELTA = 1e-10, 1e-11
"""Below it rounding errors of the convolutions show (PLD: at 1e-14 ε was 0.06 % too small): RDP's bound is returned."""
FINEST_GRID = 1e-4
CURVE_POINTS = 32


@dataclass(frozen=True)
class SampledGaussian:
    """One step: a Poisson subsample at rate q, then one Gaussian mechanism with noise multiplier σ.

    Embedding and residual are released on the *same* subsample, so together they are one Gaussian mechanism with the
    σ of `Release.noise_multiplier` inside one subsampling. Counting them as two subsampled Gaussians is correct only
    for two independent subsamples; for a shared one it understates ε.
    """

    sample_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        not_negative("noise_multiplier", self.noise_multiplier, "0 means no noise and no privacy.")
        if not 0 < self.sample_rate <= 1:
            raise ConfigurationError(
                f"The sampling rate q = expected batch size / records must be above 0 and at most 1, but it is "
                f"{self.sample_rate!r}. Use a batch size of at most the number of training records."
            )

    def to_dp_event(self) -> dp_accounting.DpEvent:
        """The same event for dp-accounting."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        return dp_accounting.PoissonSampledDpEvent(self.sample_rate, gaussian)


History = Sequence[tuple[SampledGaussian, int]]
"""Releases: events, each with the number of times it happened."""


Accountant = Callable[[History, float], float]
"""An upper bound on the ε, at δ, of a history that has noise and at least one step."""

# dp-accounting's own list starts at 1.1, where its series does not converge for σ < 1 and every query warns.
# Omitting orders can only loosen the bound, and those below 1.9 matter only for ε above 20.
RDP_ORDERS = (*(1 + x / 10 for x in range(9, 100)), *range(11, 64), 80, 96, 128, 192, 256, 512, 1024)
# Near q = 1/2 a few series of fractional orders do not converge. They are left out, which is safe, with a warning.
logging.getLogger("absl").addFilter(lambda record: "_compute_log_a_frac failed to converge" not in str(record.msg))


WHOLE_ORDERS = tuple(order for order in RDP_ORDERS if order == int(order))
"""Those that take a tenth of the time, for a bound that is a little looser."""
COARSER = 4
"""How many times coarser a grid is for `roughly_by_pld`: its ε is at most 0.02 % larger, in a quarter of the time."""


def rdp_of(history: History, orders: Sequence[float] = RDP_ORDERS) -> Any:
    """Rényi DP of the sampled Gaussian (Mironov et al. 2019), composed, at each of the orders."""
    return sum((count * _rdp_of_step(event, orders) for event, count in history), np.zeros(len(orders)))


def by_rdp(history: History, delta: float, orders: Sequence[float] = RDP_ORDERS) -> float:
    """The smallest ε that RDP proves at δ: loose, and fast."""
    return float(compute_epsilon(orders, rdp_of(history, orders), delta)[0])


def roughly_by_pld(history: History, delta: float, near: float) -> float:
    """An ε for a search, at a fraction of the time of `by_pld`; `near` is about where it is looked for."""
    if near > LARGEST_TIGHT_EPSILON or delta < SMALLEST_PLD_DELTA:
        return by_rdp(history, delta)
    bound = by_rdp(history, delta, WHOLE_ORDERS)
    if bound > LARGEST_TIGHT_EPSILON:  # as in `by_pld`: with so little noise a grid has millions of points
        return bound
    grid = COARSER * _grid(near, sum(count for _, count in history))
    return float(_composed(history, grid).get_epsilon_for_delta(delta))


def by_pld(history: History, delta: float) -> float:
    """The smallest ε by privacy loss distributions, rounded pessimistically: tight, and never too small."""
    return _by_pld(tuple(history), delta)


@lru_cache(maxsize=256)  # a calibration ends with what the account of the run asks first
def _by_pld(history: tuple[tuple[SampledGaussian, int], ...], delta: float) -> float:
    bound = by_rdp(history, delta)
    if bound > LARGEST_TIGHT_EPSILON or delta < SMALLEST_PLD_DELTA:
        return bound
    grid = _grid(bound, sum(count for _, count in history))
    return min(bound, float(_composed(history, grid).get_epsilon_for_delta(delta)))


def by_prv(history: History, delta: float) -> float:
    """The upper end of the interval for ε of Opacus' PRV accountant (Gopi et al. 2021), so never too small."""
    bound = by_rdp(history, delta)
    if bound > LARGEST_TIGHT_EPSILON or delta < SMALLEST_PRV_DELTA:
        return bound
    # Imported here because Opacus imports torch, which planning and calibration can do without.
    try:
        from opacus.accountants import PRVAccountant
    except ImportError:
        raise missing_extra("prv", "accountant='prv'") from None

    accountant = PRVAccountant()
    accountant.history = [(event.noise_multiplier, event.sample_rate, count) for event, count in history]
    return max(0.0, min(bound, float(accountant.get_epsilon(delta, eps_error=0.01, delta_error=delta * 1e-3))))


ACCOUNTANTS: dict[str, Accountant] = {"pld": by_pld, "rdp": by_rdp, "prv": by_prv}


def make_accountant(name: str) -> Accountant:
    """The accountant of that name."""
    return ACCOUNTANTS[one_of("accountant", name, ACCOUNTANTS)]


def epsilon(history: History, delta: float, accountant: str = "pld") -> float:
    """ε at δ of everything in `history`: an upper bound, 0 for no steps, ∞ if any step had no noise."""
    check_delta(delta)
    happened = [(event, count) for event, count in history if count > 0]
    if not happened:
        return 0.0
    if any(event.noise_multiplier == 0 for event, _ in happened):
        return math.inf
    return make_accountant(accountant)(happened, delta)


class EpsilonCurve:
    """An upper bound on ε(t) for t equal steps, exact at the end of the plan; cheap to ask after every step.

    The end of the plan is asked for alone, since that is all that a run needs to know at its start. For others the
    accountant is asked at about 32 evenly spaced numbers of steps up to it. Any other t gets the
    value of the next grid point: ε never falls as steps are added, so that is an upper bound. Beyond the plan the grid
    grows one point at a time, by 3 % or as far as is asked.
    """

    def __init__(self, event: SampledGaussian, delta: float, accountant: str, planned_steps: int | None = None) -> None:
        self.event, self.delta, self.accountant = event, delta, make_accountant(accountant)
        self._horizon = planned_steps or 1000
        self._steps: list[int] = []
        self._epsilons: list[float] = []

    def __call__(self, steps: int) -> float:
        """ε after `steps` steps, rounded up to the next grid point."""
        if steps == 0:
            return 0.0
        if self.event.noise_multiplier == 0:
            return math.inf
        if steps == self._horizon:
            return self._at_horizon
        if not self._steps:
            stride = max(1, self._horizon // CURVE_POINTS)
            self._extend([*range(stride, self._horizon, stride), self._horizon])
        if steps > self._steps[-1]:
            self._extend([max(steps, self._steps[-1] + self._steps[-1] // CURVE_POINTS)])
        return self._epsilons[bisect.bisect_left(self._steps, steps)]

    def stays_within(self, steps: int, limit: float) -> bool:
        """Whether ε after `steps` steps is at most `limit`; where that holds at the planned end, it holds before."""
        return (steps <= self._horizon and self(self._horizon) <= limit) or self(steps) <= limit

    @cached_property
    def _at_horizon(self) -> float:
        return self.accountant([(self.event, self._horizon)], self.delta)

    def _extend(self, grid: list[int]) -> None:
        over_steps = _pld_over_steps if self.accountant is by_pld else _over_steps
        found = over_steps(self.event, grid, self.delta, self.accountant)
        self._steps += grid
        self._epsilons += [min(value, found[-1]) for value in found]


def check_delta(delta: float, num_records: int | None = None) -> float:
    """δ, if it is in (0, 1) and, where the number of records is known, below 1/N."""
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise ConfigurationError(
            f"delta must lie between 0 and 1, but it is {delta!r}. Use e.g. 1e-5.", setting="delta"
        )
    if num_records is not None and delta >= 1 / num_records:
        raise ConfigurationError(
            f"delta={delta!r} is not below 1/N = {1 / num_records:.2g} for N={num_records} records: publishing one "
            f"record at random would already satisfy it. Use delta={power_of_ten_below(1 / num_records):.0e} or less.",
            setting="delta",
        )
    return float(delta)


def power_of_ten_below(value: float) -> float:
    """The largest power of ten strictly below `value`."""
    exponent = math.floor(math.log10(value))
    return 10.0**exponent if 10.0**exponent < value else 10.0 ** (exponent - 1)


def _over_steps(event: SampledGaussian, counts: Sequence[int], delta: float, accountant: Accountant) -> list[float]:
    """ε after each of several increasing numbers of equal steps."""
    return [accountant([(event, count)], delta) for count in counts]


def _pld_over_steps(event: SampledGaussian, counts: Sequence[int], delta: float, accountant: Accountant) -> list[float]:
    """The same from one distribution that is composed further for each, except at the last, where it is `by_pld`."""
    *earlier, last = counts
    at_last = by_pld([(event, last)], delta)
    if at_last > LARGEST_TIGHT_EPSILON or delta < SMALLEST_PLD_DELTA:
        return [*_over_steps(event, earlier, delta, accountant), at_last]
    gaps, grid = np.diff([0, *earlier]).tolist(), _grid(at_last, last)
    composed_gaps = {gap: _composed([(event, gap)], grid) for gap in dict.fromkeys(gaps)}
    distributions = accumulate((composed_gaps[gap] for gap in gaps), lambda one, other: one.compose(other))
    return [*(float(found.get_epsilon_for_delta(delta)) for found in distributions), at_last]


def _grid(epsilon: float, steps: int) -> float:
    """The grid of privacy losses: a 20 000th of ε, coarser for fewer than 300 steps, at least `FINEST_GRID`.

    A coarser grid is faster and only ever rounds up. At ε = 8 this one gave at most 0.01 % more than 1e-4 did.
    """
    return max(FINEST_GRID, epsilon / 20_000 * min(10.0, max(1.0, 300 / steps)))


def _composed(history: History, grid: float) -> Any:
    """The distribution of the privacy loss of a whole history."""
    composed = []
    for event, count in history:
        sigma, rate = event.noise_multiplier, event.sample_rate
        step = from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=grid)
        composed.append(step.self_compose(count))
    return reduce(lambda one, other: one.compose(other), composed)


@lru_cache(maxsize=256)
def _rdp_of_step(event: SampledGaussian, orders: Sequence[float]) -> Any:
    return RdpAccountant(orders).compose(event.to_dp_event()).rdp
