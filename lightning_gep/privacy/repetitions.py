"""The best of a random number of runs: distributions of that number, and what selecting the best run costs.

If the number of runs is drawn at random in advance and only the best run is published, having picked it costs two to
three times one run, growing with the mean: logarithmically for geometric and logarithmic numbers, faster for Poisson
(Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", 2022).
"""

import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from dp_accounting.rdp import compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import History, Rdp, check_delta

LARGEST_MEAN = 500.0
"""Beyond it e^−mean approaches the smallest floating-point numbers."""
SYSTEM_RANDOM = secrets.SystemRandom()
SHAPES = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}
USE_ONE_OF = f"Use 'poisson', 'geometric', 'logarithmic', or a shape from 0 to {LARGEST_MEAN:.0f}."

REPETITION_CONDITIONS = (
    "The distribution of the number of runs was fixed before the first run, and the number was drawn from it once.",
    "Each run had the same settings, or drew them at random, independently of the others, from a list fixed in "
    "advance; no setting on that list costs more than those counted here.",
    "Only the selected run is published: nothing of the others, neither weights nor scores, not even how many there "
    "were or how long they took.",
    "The choice was based on each run's own released weights, or on records that no run was trained on.",
    "If the number drawn was 0, only that fact is published, and the number is not drawn again.",
    "All runs that were drawn finished before one was selected; none was dropped or repeated because of its result.",
)
"""What must hold for `repeat_and_select_cost`; none of it can be checked here."""


@dataclass(frozen=True)
class Distribution:
    """The distribution of the number of runs.

    Args:
        mean: Its mean, truncation included.
        shape: ∞ is Poisson (which may give 0: nothing is run and nothing released), 1 geometric, 0 logarithmic; any
            other positive number the truncated negative binomial.

    Raises:
        ConfigurationError: If the mean is outside 1 to 500, or the shape is negative or too large.

    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= LARGEST_MEAN:
            raise ConfigurationError(
                f"The mean number of runs must lie between 1 and {LARGEST_MEAN:.0f}, but it is {self.mean!r}. "
                "Use e.g. 20."
            )
        if not (0 <= self.shape <= LARGEST_MEAN or self.shape == math.inf):
            raise ConfigurationError(f"The distribution of the number of runs has shape={self.shape!r}. {USE_ONE_OF}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Distribution":
        """From "mean" and either "shape" (a number or a name) or "distribution" (a name)."""
        if "mean" not in values or not {"shape", "distribution"} & values.keys():
            raise ConfigurationError(
                f"rule='repeat_and_select' needs the distribution that the number of runs was drawn from, but "
                f"repetitions={dict(values)!r}. Give {{'mean': ..., 'shape': ...}}, or use rule='composition'."
            )
        given = values.get("shape", values.get("distribution"))
        try:
            shape = float(SHAPES.get(given, given))
        except (TypeError, ValueError):
            shape = math.nan
        if math.isnan(shape):
            raise ConfigurationError(f"The distribution of the number of runs is {given!r}. {USE_ONE_OF}")
        return cls(float(values["mean"]), shape)

    @property
    def name(self) -> str:
        """What the distribution is called."""
        named = {value: name for name, value in SHAPES.items()}
        return named.get(self.shape, f"truncated negative binomial with shape {self.shape:g}")

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

    `REPETITION_CONDITIONS` must hold. Each run draws its setting from `candidates` (pairs of an event and the number
    of steps), independently of the data and of other runs. Such a run is a mixture of the candidates, and at each
    order its Rényi divergence is at most the largest of theirs, whatever the weights: Rényi divergence is jointly
    quasi-convex (van Erven and Harremoës 2014, Theorem 13). So the largest RDP at each order is the RDP of one run.
    """
    check_delta(delta)
    if not candidates:
        raise ConfigurationError("There is no candidate to select from. Give at least one (event, steps).")
    if any(event.noise_multiplier == 0 and steps > 0 for event, steps in candidates):
        return math.inf
    orders = np.asarray(Rdp.ORDERS, dtype=np.float64)
    one_run = np.max([Rdp().rdp([candidate]) for candidate in dict.fromkeys(candidates)], axis=0)
    return float(compute_epsilon(orders, distribution.selected_rdp(orders, one_run), delta)[0])
