"""Privacy accounting: a step is one event, and accountants turn a history of events into ε or δ.

Every ε and δ here is for adding or removing one record. This module needs neither torch nor Lightning.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from lightning_gep.arguments import not_negative, one_of
from lightning_gep.errors import ConfigurationError

# Beyond this ε the grids of PLD and PRV grow without bound and the figure defends nothing: RDP's bound will do.
LARGEST_TIGHT_EPSILON = 50.0


@dataclass(frozen=True)
class SampledGaussian:
    """One step: a Poisson subsample at rate q, then one Gaussian mechanism with noise multiplier σ.

    Embedding and residual are released on the *same* subsample, so together they are one Gaussian mechanism with the σ
    of `Release.noise_multiplier` inside one subsampling. Counting them as two subsampled Gaussians would be right only
    for two independent subsamples, and promises too much privacy when they are not.
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
        """The same event in the words of dp-accounting."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        return dp_accounting.PoissonSampledDpEvent(self.sample_rate, gaussian)


History = Sequence[tuple[SampledGaussian, int]]
"""What was released: events, each with the number of times it happened."""


class Accountant(Protocol):
    """Two upper bounds on the privacy loss of a history that has noise and at least one step."""

    def epsilon(self, history: History, delta: float) -> float: ...  # noqa: D102
    def delta(self, history: History, epsilon: float) -> float: ...  # noqa: D102


class Rdp:
    """Rényi DP of the sampled Gaussian (Mironov et al. 2019) from dp-accounting: loose, and fast."""

    # dp-accounting's own list begins at 1.1, where its series does not converge for σ < 1 and each query complains.
    # Leaving orders out can only loosen the bound, and below 1.9 they matter for ε above 20 alone.
    ORDERS = (*(1 + x / 10 for x in range(9, 100)), *range(11, 64), 80, 96, 128, 192, 256, 512, 1024)

    def epsilon(self, history: History, delta: float) -> float:
        """The smallest ε that RDP proves at δ."""
        return float(_composed(RdpAccountant(self.ORDERS), history).get_epsilon(delta))

    def epsilons(self, event: SampledGaussian, counts: Sequence[int], delta: float) -> list[float]:
        """ε after each of several numbers of equal steps: RDP adds up, so one step's is asked for once."""
        one_step = _composed(RdpAccountant(self.ORDERS), [(event, 1)]).rdp
        return [float(compute_epsilon(self.ORDERS, count * one_step, delta)[0]) for count in counts]

    def delta(self, history: History, epsilon: float) -> float:
        """The smallest δ that RDP proves at ε."""
        return float(_composed(RdpAccountant(self.ORDERS), history).get_delta(epsilon))


class Pld:
    """Privacy loss distributions from dp-accounting, rounded pessimistically: tight, and never too small."""

    SMALLEST_DELTA = 1e-10
    """Below it the rounding of the convolutions shows: at 1e-14 ε came out 0.06 % too small. RDP's bound is given."""

    def epsilon(self, history: History, delta: float) -> float:
        """The smallest ε that the discretised distribution proves at δ."""
        bound = Rdp().epsilon(history, delta)
        if bound > LARGEST_TIGHT_EPSILON or delta < self.SMALLEST_DELTA:
            return bound
        accountant = PLDAccountant(value_discretization_interval=pld_grid(bound))
        return min(bound, float(_composed(accountant, history).get_epsilon(delta)))

    def delta(self, history: History, epsilon: float) -> float:
        """The smallest δ that the discretised distribution proves at ε."""
        bound = Rdp().delta(history, epsilon)
        if epsilon > LARGEST_TIGHT_EPSILON:
            return bound
        found = float(_composed(PLDAccountant(), history).get_delta(epsilon))
        return min(bound, max(found, self.SMALLEST_DELTA))


def pld_grid(epsilon: float) -> float:
    """The grid of privacy losses for an ε of about this size: a 20 000th of it, and 1e-4 at the finest.

    A coarser grid is faster and only ever rounds up; at ε = 8 this one gave at most 0.01 % more than 1e-4 did.
    """
    return max(1e-4, epsilon / 20_000)


class Prv:
    """Opacus' PRV accountant (Gopi et al. 2021); its upper end, so never too small."""

    EPSILON_ERROR = 0.01
    DELTA_ERROR_FRACTION = 1e-3
    SMALLEST_DELTA = 1e-11
    """Below it the rounding of PRV's convolutions dominates; RDP's bound is given instead."""

    def epsilon(self, history: History, delta: float) -> float:
        """The upper end of PRV's interval for ε at δ."""
        bound = Rdp().epsilon(history, delta)
        if bound > LARGEST_TIGHT_EPSILON or delta < self.SMALLEST_DELTA:
            return bound
        accountant = _opacus_prv(history)
        error = delta * self.DELTA_ERROR_FRACTION
        found = float(accountant.get_epsilon(delta, eps_error=self.EPSILON_ERROR, delta_error=error))
        return max(0.0, min(bound, found))

    def delta(self, history: History, epsilon: float) -> float:
        """The smallest δ whose ε is at most the one asked for, to three digits."""
        low, high = math.log(self.SMALLEST_DELTA), 0.0
        while high - low > 1e-3:
            middle = (low + high) / 2
            if self.epsilon(history, math.exp(middle)) <= epsilon:
                high = middle
            else:
                low = middle
        return math.exp(high)


ACCOUNTANTS: dict[str, Callable[[], Accountant]] = {"pld": Pld, "rdp": Rdp, "prv": Prv}


def epsilon(history: History, delta: float, accountant: str = "pld") -> float:
    """The ε at δ of everything in `history`: an upper bound, 0 for no steps, ∞ if any step had no noise."""
    check_delta(delta)
    happened = _happened(history)
    if not happened:
        return 0.0
    if any(event.noise_multiplier == 0 for event, _ in happened):
        return math.inf
    return make_accountant(accountant).epsilon(happened, delta)


def delta(history: History, epsilon: float, accountant: str = "pld") -> float:
    """The δ at ε of everything in `history`: an upper bound, 0 for no steps, 1 if any step had no noise."""
    not_negative("epsilon", epsilon, "Give the ε for which you want δ.")
    happened = _happened(history)
    if not happened:
        return 0.0
    if any(event.noise_multiplier == 0 for event, _ in happened):
        return 1.0
    return min(1.0, make_accountant(accountant).delta(happened, epsilon))


def make_accountant(name: str) -> Accountant:
    """The accountant of that name."""
    return ACCOUNTANTS[one_of("accountant", name, ACCOUNTANTS)]()


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


def _happened(history: History) -> History:
    return [(event, count) for event, count in history if count > 0]


def _composed(accountant: Any, history: History) -> Any:
    for event, count in history:
        accountant.compose(event.to_dp_event(), count)
    return accountant


def _opacus_prv(history: History) -> Any:
    # Imported here because Opacus imports torch, which plans and calibrations can do without.
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(event.noise_multiplier, event.sample_rate, count) for event, count in history]
    return accountant
