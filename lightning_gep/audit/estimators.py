"""Lower bounds on ε from the scores of canaries. Each holds with the confidence asked for, under what it assumes.

Scores are high for canaries that were included. Which bounds to trust follows from the assumptions: those of one run
assume nothing but fair coins, the threshold bound assumes independent scores, the Gaussian one normal scores as well.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import get_epsilon_gaussian
from numpy.typing import NDArray
from scipy import special, stats

Scores = NDArray[np.float64]
Progress = Callable[[str, float], None]
"""What is going on, and which share of it is done."""
CANDIDATES = 200
"""Thresholds that are tried on the first half of the scores."""
GUESSED = (1.0, 0.5, 0.25, 0.1, 0.03)
"""Shares of the canaries that a one-run attack guesses; it abstains on those with scores in the middle."""
LARGEST_EPSILON = 100.0


@dataclass(frozen=True)
class Bound:
    """ε is at least `epsilon` with this confidence, if `assumes` holds."""

    name: str
    epsilon: float
    confidence: float
    assumes: str


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of a μ-GDP mechanism: two normal distributions a distance of μ standard deviations apart."""
    return float(get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0


def gaussian_mu(included: Scores, left_out: Scores, confidence: float) -> float:
    """A lower bound on μ, the distance of the two means in units of the common standard deviation.

    The two-sample t statistic has a noncentral t distribution with noncentrality μ/√(1/n₁ + 1/n₀); its cdf falls as the
    noncentrality grows, so solving it for `confidence` gives an exact bound (Hedges and Olkin 1985).
    """
    n, m = len(included), len(left_out)
    scale, freedom = math.sqrt(1 / n + 1 / m), n + m - 2
    pooled = ((n - 1) * np.var(included, ddof=1) + (m - 1) * np.var(left_out, ddof=1)) / freedom
    if pooled == 0:
        return math.inf if np.mean(included) != np.mean(left_out) else 0.0
    t = float((np.mean(included) - np.mean(left_out)) / (math.sqrt(pooled) * scale))
    # Beyond this SciPy's root finder fails; what is left of the distance is still far above any ε worth stating.
    return max(0.0, float(special.nctdtrinc(freedom, confidence, min(t, 1e3)) * scale))


def gaussian_bound(included: Scores, left_out: Scores, delta: float, confidence: float) -> Bound:
    """ε at δ of the Gaussian mechanism that `gaussian_mu` finds."""
    mu = gaussian_mu(included, left_out, confidence)
    return Bound("Gaussian", gaussian_epsilon(mu, delta), confidence, "independent, normal scores")


def threshold_bound(included: Scores, left_out: Scores, delta: float, confidence: float) -> Bound:
    """The best attack by a single threshold: (ε, δ)-DP bounds its hit rate by e^ε · false alarms + δ.

    The threshold and its direction are chosen on the first half of the scores, so that the Clopper–Pearson intervals on
    the second half need no correction for the choice.
    """

    def epsilon(direction: int, threshold: float, second: int) -> float:
        hits, alarms = (direction * scores[second::2] > threshold for scores in (included, left_out)[::direction])
        level = (1 - confidence) / 2
        rate = clopper_pearson(int(hits.sum()), len(hits), level, upper=False) - delta
        false = clopper_pearson(int(alarms.sum()), len(alarms), level, upper=True)
        return math.log(rate / false) if rate > false else 0.0

    levels = np.linspace(0, 1, CANDIDATES + 2)[1:-1]
    tried = [
        (epsilon(direction, threshold, 0), direction, float(threshold))
        for direction in (1, -1)
        for threshold in np.quantile(direction * np.concatenate([included, left_out])[::2], levels)
    ]
    _, direction, threshold = max(tried)
    return Bound("threshold", epsilon(direction, threshold, 1), confidence, "independent scores")


def clopper_pearson(successes: int, trials: int, level: float, *, upper: bool) -> float:
    """The exact one-sided confidence bound on a probability (Clopper and Pearson 1934)."""
    if upper:
        return 1.0 if successes == trials else float(special.betaincinv(successes + 1, trials - successes, 1 - level))
    return 0.0 if successes == 0 else float(special.betaincinv(successes, trials - successes + 1, level))


def one_run_bounds(scores: Scores, included: NDArray[np.bool_], delta: float, confidence: float) -> list[Bound]:
    """Bounds from guessing which of m canaries were included by fair coins, in one run or several pooled ones.

    Canaries may influence each other and scores need not be independent. Runs can be pooled because a coin decides
    about one of them only, so they are one mechanism on all coins.
    """
    attempts = [guesses(scores, included, share) for share in GUESSED]
    level = (1 - confidence) / len(attempts)  # the best attempt counts
    canaries = len(scores)

    def best(rejects: Callable[[float, int, int], bool], high: float) -> float:
        return max(largest(lambda value: rejects(value, *attempt), high) for attempt in attempts)  # noqa: B023

    counted = best(lambda epsilon, r, v: dp_p_value(canaries, r, v, epsilon, delta) <= level, LARGEST_EPSILON)
    traded = best(lambda epsilon, r, v: refutes(canaries, r, v, dp_inverse(epsilon, delta), level), LARGEST_EPSILON)
    mu = best(lambda mu, r, v: refutes(canaries, r, v, gaussian_inverse(mu), level), 20.0)
    return [
        Bound("one run", counted, confidence, "fair coins"),
        Bound("one run, f-DP", traded, confidence, "fair coins"),
        Bound("one run, Gaussian", gaussian_epsilon(mu, delta), confidence, "fair coins, a Gaussian mechanism"),
    ]


def guesses(scores: Scores, included: NDArray[np.bool_], share: float) -> tuple[int, int]:
    """How many of the canaries with the highest and lowest scores are guessed, and how many guesses are right."""
    each = max(1, int(share * len(scores) / 2))
    order = np.argsort(scores)
    return 2 * each, int((~included[order[:each]]).sum() + included[order[-each:]].sum())


def dp_p_value(canaries: int, guessed: int, right: int, epsilon: float, delta: float) -> float:
    """The probability of this many right guesses or more under (ε, δ)-DP (Steinke et al. 2023, Theorem 3.1).

    With W ~ Binomial(r, e^ε/(1+e^ε)) it is at most P[W ≥ v] + 2mδ · max over i of P[v > W ≥ v − i]/i.
    """
    accuracy = 1 / (1 + math.exp(-epsilon))
    below = stats.binom.pmf(np.arange(right - 1, -1, -1), guessed, accuracy)
    slack = float(np.max(np.cumsum(below) / np.arange(1, right + 1))) if right else 0.0
    return min(1.0, float(stats.binom.sf(right - 1, guessed, accuracy)) + 2 * canaries * delta * slack)


def refutes(canaries: int, guessed: int, right: int, inverse: Callable[[float], float], level: float) -> bool:
    """Whether `right` or more right guesses are less likely than `level` under a trade-off function f.

    `inverse` is that of 1 − f, which f-DP makes an upper bound: P[S | one coin] ≤ (1 − f)(P[S | the coin flipped]). Let
    pᵢ be the probability of i right guesses. Taking for S "guess j is right, and at least T are", averaging over coins
    and j (1 − f is concave) gives Σ_{i≥T} (i/m) pᵢ ≤ (1 − f)(Σ_{i≥T−1} ((r−i)/m) pᵢ) for every T (Mahloujifar et al.
    2024). From `level` mass at `right`, the least mass that it forces on smaller counts is added up; more than 1 in
    total refutes f.
    """
    hit, miss = level * right / canaries, level * (guessed - right) / canaries
    for count in range(right - 1, -1, -1):
        if hit + miss > guessed / canaries:
            return True
        forced = max(miss, inverse(hit))
        hit, miss = hit + count / (guessed - count) * (forced - miss), forced
    return hit + miss > guessed / canaries


def dp_inverse(epsilon: float, delta: float) -> Callable[[float], float]:
    """The inverse of 1 − f for (ε, δ)-DP, where f(x) = max(0, 1 − δ − e^ε x, e^−ε (1 − δ − x)) (Dong et al. 2022)."""
    grown = math.exp(epsilon)
    return lambda y: max(0.0, (y - delta) / grown, 1 - delta - (1 - y) * grown)


def gaussian_inverse(mu: float) -> Callable[[float], float]:
    """The inverse of 1 − f for μ-GDP, where 1 − f(x) = Φ(Φ⁻¹(x) + μ) (Dong et al. 2022)."""
    ndtr: Any = special.ndtr
    return lambda y: float(ndtr(special.ndtri(y) - mu))


def largest(rejected: Callable[[float], bool], high: float, tolerance: float = 1e-3) -> float:
    """The largest value rejected, from below, of a test that rejects small values only; 0 if it rejects none."""
    low = 0.0
    if not rejected(low):
        return 0.0
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
