"""The best of a random number of runs: the distributions of that number, and what selecting costs.

If the number of runs is drawn at random beforehand and only the best run leaves, having picked it costs two to three
times one run, and more for larger means: with their logarithm if the number is geometric or logarithmic, faster if it
is Poisson's (Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", 2022).
"""

import math
import secrets
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
from dp_accounting.rdp import RdpAccountant, compute_epsilon, rdp_privacy_accountant

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import Rdp, SampledGaussian, check_delta

LARGEST_MEAN = 500.0
"""Beyond it e^−mean comes near the smallest numbers there are; nobody trains as often either."""
SYSTEM_RANDOM = secrets.SystemRandom()
SHAPES = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}

REPETITION_CONDITIONS = (
    "The distribution of the number of runs was fixed before the first run, and the number was drawn from it once.",
    "Each run had the same settings, or drew them at random, independently of the others, from a list fixed "
    "beforehand; no setting on that list costs more than those counted here.",
    "Only the selected run leaves: nothing of the others, neither weights nor scores, not even how many there were or "
    "how long they took.",
    "The choice looked at each run's own released weights, or at records that no run was trained on.",
    "If the number drawn was 0, nothing leaves but that fact, and nothing is drawn again.",
    "All runs that were drawn were finished before one was selected; none was left out, or made again, for its result.",
)
"""What must hold for the figure of `repeat_and_select_cost`; nothing here can check it."""


class Candidate(NamedTuple):
    """A setting that a run may have: its event, and how many steps it makes."""

    event: SampledGaussian
    steps: int


def repeat_and_select_cost(candidates: Sequence[Candidate], delta: float, *, mean: float, shape: float | str) -> float:
    """ε at δ of the best of a random number of runs, by RDP; ∞ if any candidate has no noise.

    The number of runs has the distribution of `draw_repetitions(mean, shape)`, and `REPETITION_CONDITIONS` must hold.
    Each run draws its setting from `candidates` at random, independently of the data and of other runs. Such a run is
    a mixture of the candidates, and at each order its Rényi divergence is at most the largest of theirs: Rényi
    divergence is jointly quasi-convex (van Erven and Harremoës 2014, Theorem 13), whatever the weights of the mixture.
    So the largest RDP at each order is the RDP of one run, and the theorems of Papernot and Steinke take it from
    there.
    """
    check_delta(delta)
    shape = shape_of(shape)
    _check_distribution(mean, shape)
    if not candidates:
        raise ConfigurationError("There is no candidate to select from. Give at least one (event, steps).")
    if any(event.noise_multiplier == 0 and steps > 0 for event, steps in candidates):
        return math.inf
    orders = np.asarray(Rdp.ORDERS, dtype=np.float64)
    one_run = np.max([_rdp(event, steps) for event, steps in dict.fromkeys(candidates)], axis=0)
    selected = _poisson_rdp(orders, one_run, mean) if math.isinf(shape) else _binomial_rdp(orders, one_run, mean, shape)
    return float(compute_epsilon(orders, selected, delta)[0])


def draw_repetitions(mean: float, shape: float | str, random: Random = SYSTEM_RANDOM) -> int:
    """A number of runs from the distribution that `repeat_and_select_cost` accounts for, up to rounding.

    `shape` is ∞ or "poisson" (which may give 0: then nothing is run and nothing released), 1 or "geometric", 0 or
    "logarithmic", and any other positive number for the truncated negative binomial. `mean` is the mean of the
    distribution itself, truncation included.
    """
    left = random.random()
    for count, probability in _probabilities(mean, shape_of(shape)):
        left -= probability
        # Rounding may leave a rest that no probability uses up: past the mean they only become smaller.
        if left < 0 or (count > mean and probability < 1e-18):
            return count
    raise AssertionError("the probabilities have no end")


def repetition_probability(count: int, mean: float, shape: float | str) -> float:
    """The probability that `draw_repetitions(mean, shape)` gives `count`."""
    for value, probability in _probabilities(mean, shape_of(shape)):
        if value >= count:
            return probability if value == count else 0.0
    raise AssertionError("the probabilities have no end")


def shape_of(distribution: float | str) -> float:
    """The shape of a distribution given by its name or by its shape; "inf" is a shape too."""
    if isinstance(distribution, str) and distribution.lower() in SHAPES:
        return SHAPES[distribution.lower()]
    try:
        shape = float(distribution)
    except ValueError:
        shape = math.nan
    if math.isnan(shape) or shape < 0:
        raise ConfigurationError(
            f"The distribution of the number of runs is {distribution!r}. Use 'poisson', 'geometric', 'logarithmic', "
            "or a shape of 0 or more."
        )
    return shape


def distribution_name(shape: float) -> str:
    """What the distribution of that shape is called."""
    named = {value: name for name, value in SHAPES.items()}
    return named.get(shape, f"truncated negative binomial with shape {shape:g}")


def _rdp(event: SampledGaussian, steps: int) -> Any:
    """RDP of a run at the orders of `Rdp`."""
    accountant = RdpAccountant(Rdp.ORDERS)
    if steps > 0:
        accountant.compose(event.to_dp_event(), steps)
    return accountant.rdp


def _poisson_rdp(orders: Any, one_run: Any, mean: float) -> Any:
    """Papernot and Steinke, Theorem 6: ε′(λ) = ε(λ) + μδ̂ + ln μ/(λ − 1), one run being (ln(1 + 1/(λ − 1)), δ̂)-DP."""

    def delta_hat(order: float) -> float:
        return float(rdp_privacy_accountant.compute_delta(orders, one_run, math.log1p(1 / (order - 1)))[0])

    deltas = np.array([delta_hat(order) for order in orders])
    return one_run + mean * deltas + math.log(mean) / (orders - 1)


def _binomial_rdp(orders: Any, one_run: Any, mean: float, shape: float) -> Any:
    """Papernot and Steinke, Theorem 2, with η = `shape`, for the truncated negative binomial.

    ε′(λ) = ε(λ) + (1 + η)(1 − 1/λ̂)ε(λ̂) + (1 + η)·ln(1/γ)/λ̂ + ln(mean)/(λ − 1), at the best λ̂ of the orders. RDP never
    falls as the order grows, so a bound at a larger order holds at a smaller one too.
    """
    constant = (1 + shape) * np.min((1 - 1 / orders) * one_run + _log_inverse_gamma(mean, shape) / orders)
    selected = one_run + constant + math.log(mean) / (orders - 1)
    return np.minimum.accumulate(selected[::-1])[::-1]


def _log_inverse_gamma(mean: float, shape: float) -> float:
    """ln(1/γ) of the truncated negative binomial with that mean: the distribution's own parameter.

    Its mean is η(1/γ − 1)/(1 − γ^η), and (1/γ − 1)/ln(1/γ) for η = 0; it grows with ln(1/γ), so halving finds it.
    """

    def mean_at(x: float) -> float:
        return math.expm1(x) / x if shape == 0 else shape * math.expm1(x) / -math.expm1(-shape * x)

    if mean == 1:
        return 0.0
    low, high = 0.0, 1.0
    while mean_at(high) < mean:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if mean_at(middle) < mean else (low, middle)
    return high


def _probabilities(mean: float, shape: float) -> Iterator[tuple[int, float]]:
    """The possible numbers of runs in order, each with its probability; without end."""
    _check_distribution(mean, shape)
    if math.isinf(shape):
        count, probability = 0, math.exp(-mean)
        while True:
            yield count, probability
            count, probability = count + 1, probability * mean / (count + 1)
    x = _log_inverse_gamma(mean, shape)
    go_on = -math.expm1(-x)  # 1 − γ
    count, probability = 1, 1.0
    if x > 0:
        probability = go_on / x if shape == 0 else go_on * shape / math.expm1(shape * x)
    while True:
        yield count, probability
        probability *= go_on * (count + shape) / (count + 1)
        count += 1


def _check_distribution(mean: float, shape: float) -> None:
    if not 1 <= mean <= LARGEST_MEAN:
        raise ConfigurationError(
            f"The mean number of runs must lie between 1 and {LARGEST_MEAN:.0f}, but it is {mean!r}. Use e.g. 20."
        )
    if LARGEST_MEAN < shape < math.inf:
        raise ConfigurationError(
            f"shape={shape!r} is so large that the distribution is a Poisson's but for rounding. Use 'poisson'."
        )
