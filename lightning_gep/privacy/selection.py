"""What it costs to train several runs on the same records and keep the best one.

There are two ways to count. Runs listed in advance compose: whoever compares all of them has seen all of them. If
instead the *number* of runs is drawn at random in advance and only the best is published, having picked it costs two to
three times one run, growing with the mean: logarithmically for geometric and logarithmic numbers, faster for Poisson
(Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", 2022).
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.rdp import compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from scipy.optimize import brentq

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import RDP_ORDERS, History, SampledGaussian, check_delta, epsilon, rdp_of
from lightning_gep.privacy.ledger import LedgerContent
from lightning_gep.privacy.plan import PrivacyPlan

MOST_EVENTS = 48
"""With more distinct events than this RDP counts them: the work of the tight accountants grows with their number."""
SHAPES = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}
LARGEST_MEAN = 500.0


@dataclass(frozen=True)
class RunCost:
    """What one run cost, and may still cost: all that counting a selection needs.

    `steps` are those released so far. A run that has not `ended` may still release up to `planned_steps`, if known; one
    that is not `private` has no guarantee at all.
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
    def from_ledger(cls, content: LedgerContent, *, private: bool, ended: bool) -> "RunCost":
        """The cost of a run from its ledger, which holds its plan and every release, but not whether it is private."""
        plan = PrivacyPlan.from_state(content.parameters["plan"])
        return cls(plan.event, content.count, plan.planned_steps, plan.delta, plan.accountant, private, ended)


def composed_cost(histories: Iterable[History], delta: float, accountant: str = "pld") -> float:
    """ε at δ of releasing everything in all `histories`: an upper bound, ∞ if any step of any run had no noise.

    Equal events are counted together. For more than 48 distinct ones it is RDP's bound.
    """
    counts: Counter[SampledGaussian] = Counter()
    for history in histories:
        for event, steps in history:
            counts[event] += steps
    return epsilon(list(counts.items()), delta, "rdp" if len(counts) > MOST_EVENTS else accountant)


@dataclass(frozen=True)
class Distribution:
    """The distribution of the number of runs: its mean, and one of `SHAPES`.

    Poisson may give 0: nothing is run and nothing released. The other two are truncated negative binomial
    distributions with η = `shape`, which start at 1.
    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= LARGEST_MEAN:
            raise ConfigurationError(
                f"The mean number of runs must lie between 1 and {LARGEST_MEAN:.0f}, but it is {self.mean!r}. "
                "Use e.g. 20."
            )

    def draw(self, generator: np.random.Generator | None = None) -> int:
        """A number of runs; by default from a generator that numpy seeds with operating system entropy."""
        generator = generator or np.random.default_rng()
        if math.isinf(self.shape):
            return int(generator.poisson(self.mean))
        is_geometric = self.shape == 1 or self.mean == 1
        return int(generator.geometric(1 / self.mean) if is_geometric else generator.logseries(1 - self._gamma()))

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
        at_best_order = np.min((1 - 1 / orders) * one_run - math.log(self._gamma()) / orders)
        selected = one_run + (1 + self.shape) * at_best_order + mean_term
        return np.minimum.accumulate(selected[::-1])[::-1]

    def _gamma(self) -> float:
        """γ of the truncated negative binomial: its mean is 1/γ for η = 1, and (1/γ − 1)/ln(1/γ) for η = 0."""
        if self.shape == 1 or self.mean == 1:
            return 1 / self.mean
        return math.exp(-brentq(lambda x: math.expm1(x) / x - self.mean, 1e-16, 20.0, xtol=1e-14))


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
    orders = np.asarray(RDP_ORDERS, dtype=np.float64)
    one_run = np.max([rdp_of([candidate]) for candidate in dict.fromkeys(candidates)], axis=0)
    return float(compute_epsilon(orders, distribution.selected_rdp(orders, one_run), delta)[0])
