"""What it costs to train several runs on the same records and keep the best one.

There are two ways to count. Runs listed in advance compose: whoever compares all of them has seen all of them. If
instead the *number* of runs is drawn at random in advance and only the best is published, having picked it costs two to
three times one run, growing with the mean: logarithmically for geometric and logarithmic numbers, faster for Poisson
(Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", 2022).
"""

import math
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from dp_accounting.rdp import compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import History, Rdp, SampledGaussian, check_delta, epsilon
from lightning_gep.privacy.ledger import LedgerContent
from lightning_gep.privacy.plan import PrivacyPlan

MOST_EVENTS = 48
"""With more distinct events than this, similar ones are merged: the accountant's work grows with their number."""
SYSTEM_RANDOM = secrets.SystemRandom()
SHAPES = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}
LARGEST_MEAN = 500.0
"""Beyond it e^−mean approaches the smallest floating-point numbers."""


@dataclass(frozen=True)
class RunCost:
    """What one run cost, and may still cost: all that counting a selection needs.

    Args:
        event: The cost of one step.
        steps: Steps released so far.
        planned_steps: Steps of the whole run, if known.
        delta: The run's δ.
        accountant: The run's accountant.
        private: Whether the run has a guarantee at all.
        ended: Whether no further step will be released.

    """

    event: SampledGaussian
    steps: int
    planned_steps: int | None = None
    delta: float = 1.0
    accountant: str = "pld"
    private: bool = True
    ended: bool = True

    @property
    def longest(self) -> int:
        """Steps that the run has released or was planned to release, whichever is larger."""
        return max(self.steps, self.planned_steps or 0)

    @property
    def history(self) -> History:
        """What has to be paid for. A run that has not ended counts as long as it was planned."""
        return [(self.event, self.steps if self.ended else self.longest)]

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> "RunCost":
        """The cost of a run from its privacy card."""
        guarantee, steps = card["guarantee"], card["steps"]
        return cls(
            SampledGaussian(float(card["sampling"]["sample_rate"]), float(card["mechanism"]["noise_multiplier"])),
            steps=int(steps["counted"]),
            planned_steps=steps["planned"],
            delta=float(guarantee["delta"]),
            accountant=guarantee["accountant"],
            private=guarantee["private"],
            ended=card["status"] in ("finished", "stopped"),
        )

    @classmethod
    def from_ledger(cls, content: LedgerContent, *, private: bool, ended: bool) -> "RunCost":
        """The cost of a run from its ledger, which holds its plan and every release, but not whether it is private."""
        plan = PrivacyPlan.from_state(content.parameters["plan"])
        return cls(plan.event, content.count, plan.planned_steps, plan.delta, plan.accountant, private, ended)

    @classmethod
    def without_privacy(cls, steps: int, *, ended: bool) -> "RunCost":
        """The cost of a run that trained on the records without any privacy mechanism."""
        return cls(SampledGaussian(1.0, 0.0), steps, private=False, ended=ended)


def composed_cost(histories: Iterable[History], delta: float, accountant: str = "pld") -> float:
    """ε at δ of releasing everything in all `histories`: an upper bound, ∞ if any step of any run had no noise.

    Equal events are counted together. If more than 48 distinct ones remain, similar events are merged into one that
    costs at least as much as each of them, by lowering σ and raising q: a smaller σ costs no less, because noise can
    be added afterwards. Nor does a larger rate q′: sampling at rate q is sampling at q′ with probability q/q′ and
    leaving the record out otherwise, and divergences are jointly convex.
    """
    return epsilon(_merged([pair for history in histories for pair in history]), delta, accountant)


@dataclass(frozen=True)
class Distribution:
    """The distribution of the number of runs.

    Args:
        mean: Its mean, truncation included.
        shape: One of `SHAPES`: ∞ is Poisson (which may give 0: nothing is run and nothing released), 1 geometric, 0
            logarithmic. Any positive number is a truncated negative binomial distribution.

    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= LARGEST_MEAN:
            raise ConfigurationError(
                f"The mean number of runs must lie between 1 and {LARGEST_MEAN:.0f}, but it is {self.mean!r}. "
                "Use e.g. 20."
            )

    def draw(self, random: Random = SYSTEM_RANDOM) -> int:
        """A number of runs, exact up to rounding."""
        left = random.random()
        for count, probability in self.probabilities():
            left -= probability
            # Rounding may leave a remainder that no probability uses up; past the mean they only become smaller.
            if left < 0 or (count > self.mean and probability < 1e-18):
                return count
        raise AssertionError("the probabilities have no end")

    def probabilities(self) -> Iterator[tuple[int, float]]:
        """The possible numbers of runs in increasing order, each with its probability; endless."""
        if math.isinf(self.shape):
            count, probability = 0, math.exp(-self.mean)
            while True:
                yield count, probability
                count, probability = count + 1, probability * self.mean / (count + 1)
        x = self._log_inverse_gamma()
        another = -math.expm1(-x)  # 1 − γ
        count, probability = 1, 1.0
        if x > 0:
            probability = another / x if self.shape == 0 else another * self.shape / math.expm1(self.shape * x)
        while True:
            yield count, probability
            probability *= another * (count + self.shape) / (count + 1)
            count += 1

    def selected_rdp(self, orders: Any, one_run: Any) -> Any:
        """RDP of the best run at each order, from the RDP of one run (Papernot and Steinke 2022).

        Poisson (Theorem 6): ε′(λ) = ε(λ) + μδ̂ + ln μ/(λ − 1), where one run is (ln(1 + 1/(λ − 1)), δ̂)-DP.

        Truncated negative binomial with η = `shape` (Theorem 2): ε′(λ) = ε(λ) + (1 + η)(1 − 1/λ̂)ε(λ̂)
        + (1 + η)·ln(1/γ)/λ̂ + ln μ/(λ − 1), at the best λ̂. RDP never falls as the order grows, so a bound at a larger
        order holds at a smaller one too.
        """
        mean_term = math.log(self.mean) / (orders - 1)
        if math.isinf(self.shape):
            deltas = [float(compute_delta(orders, one_run, math.log1p(1 / (order - 1)))[0]) for order in orders]
            return one_run + self.mean * np.array(deltas) + mean_term
        at_best_order = np.min((1 - 1 / orders) * one_run + self._log_inverse_gamma() / orders)
        selected = one_run + (1 + self.shape) * at_best_order + mean_term
        return np.minimum.accumulate(selected[::-1])[::-1]

    def _log_inverse_gamma(self) -> float:
        """ln(1/γ) of the truncated negative binomial, by bisection.

        The mean is η(1/γ − 1)/(1 − γ^η), or (1/γ − 1)/ln(1/γ) for η = 0, and grows with ln(1/γ).
        """

        def mean_at(x: float) -> float:
            return math.expm1(x) / x if self.shape == 0 else self.shape * math.expm1(x) / -math.expm1(-self.shape * x)

        if self.mean == 1:
            return 0.0
        low, high = 0.0, 1.0
        while mean_at(high) < self.mean:
            high *= 2
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if mean_at(middle) < self.mean else (low, middle)
        return high


def repeat_and_select_cost(candidates: History, delta: float, distribution: Distribution) -> float:
    """ε at δ of publishing the best of a random number of runs, by RDP; ∞ if any candidate has no noise.

    The conditions stated on the card must hold; they cannot be checked here. Each run draws its setting from
    `candidates` (pairs of an event and the number of steps), independently of the data and of other runs. Such a run is
    a mixture of the candidates, and at each order its Rényi divergence is at most the largest of theirs, whatever the
    weights: Rényi divergence is jointly quasi-convex (van Erven and Harremoës 2014, Theorem 13). So the largest RDP at
    each order is the RDP of one run.
    """
    check_delta(delta)
    if not candidates:
        raise ConfigurationError("There is no candidate to select from. Give at least one (event, steps).")
    if any(event.noise_multiplier == 0 and steps > 0 for event, steps in candidates):
        return math.inf
    orders = np.asarray(Rdp.ORDERS, dtype=np.float64)
    one_run = np.max([Rdp().rdp([candidate]) for candidate in dict.fromkeys(candidates)], axis=0)
    return float(compute_epsilon(orders, distribution.selected_rdp(orders, one_run), delta)[0])


def _merged(history: History) -> History:
    """A history that costs at least as much, with few distinct events."""
    exact = _counted(history)
    merged, ratio = exact, 1.001
    while len(merged) > MOST_EVENTS and ratio < 1e6:
        ratio = 1 + 1.4 * (ratio - 1)
        merged = _counted((_costlier(event, ratio), steps) for event, steps in exact)
    return merged


def _counted(history: Iterable[tuple[SampledGaussian, int]]) -> History:
    counts: Counter[SampledGaussian] = Counter()
    for event, steps in history:
        counts[event] += steps
    return list(counts.items())


def _costlier(event: SampledGaussian, ratio: float) -> SampledGaussian:
    """The event with σ lowered and q raised to powers of `ratio`; without noise σ stays 0."""
    rate = ratio ** math.ceil(math.log(event.sample_rate, ratio))
    sigma = event.noise_multiplier and ratio ** math.floor(math.log(event.noise_multiplier, ratio))
    # Logarithms round; the event must not become cheaper because of that.
    return SampledGaussian(min(1.0, max(rate, event.sample_rate)), min(sigma, event.noise_multiplier))
