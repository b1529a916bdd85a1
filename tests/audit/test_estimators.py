"""Bounds against exact Gaussians: never above the truth beyond their confidence, and not far below it."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from lightning_gep.audit.estimators import (
    clopper_pearson,
    dp_inverse,
    dp_p_value,
    gaussian_bound,
    gaussian_epsilon,
    gaussian_inverse,
    gaussian_mu,
    one_run_bounds,
    refutes,
    threshold_bound,
)
from tests.reference import gaussian_delta

DELTA = 1e-5


def scores(mu, count, seed):
    generator = np.random.default_rng(seed)
    return generator.normal(mu, 1, count), generator.normal(0, 1, count)


def one_run(mu, canaries, seed):
    generator = np.random.default_rng(seed)
    included = generator.random(canaries) < 0.5
    return generator.normal(0, 1, canaries) + mu * included, included


def failures_allowed(trials, level):
    """Fewer than one false alarm in 10⁷ if failures have probability `level`."""
    return int(binom.isf(1e-7, trials, level))


@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 0.5), (1.0, 4.0), (5.0, 30.0)])
def test_epsilon_is_that_of_the_gaussian_mechanism(mu, epsilon):
    assert gaussian_epsilon(mu, gaussian_delta(mu, epsilon)) == pytest.approx(epsilon, rel=1e-6)
    assert gaussian_epsilon(1e-7, DELTA) == gaussian_epsilon(0.0, DELTA) == 0.0


@pytest.mark.parametrize(("mu", "count"), [(0.27, 2000), (1.67, 50)])
def test_the_gaussian_bound_holds_as_often_as_it_says_and_no_oftener(mu, count):
    above = sum(gaussian_mu(*scores(mu, count, seed), 0.9) > mu for seed in range(1000))
    assert binom.ppf(1e-7, 1000, 0.1) <= above <= failures_allowed(1000, 0.1)


def test_the_gaussian_bound_is_close_to_the_truth():
    found = gaussian_bound(*scores(1.0, 20_000, 0), DELTA, 0.95)
    assert 0.93 * gaussian_epsilon(1.0, DELTA) < found.epsilon < 1.02 * gaussian_epsilon(1.0, DELTA)


def test_scores_without_noise_have_no_finite_epsilon():
    assert gaussian_bound(np.ones(50), np.zeros(50), DELTA, 0.95).epsilon == math.inf
    assert gaussian_bound(np.ones(50), np.ones(50), DELTA, 0.95).epsilon == 0.0


@pytest.mark.parametrize("successes", [0, 1, 7, 20])
def test_clopper_pearson_is_where_the_binomial_has_its_level(successes):
    low, high = (clopper_pearson(successes, 20, 0.05, upper=upper) for upper in (False, True))
    assert binom.sf(successes - 1, 20, low) == pytest.approx(0.05) if successes else low == 0
    assert binom.cdf(successes, 20, high) == pytest.approx(0.05) if successes < 20 else high == 1


@pytest.mark.parametrize("mu", [0.0, 1.67])
def test_the_threshold_bound_is_valid_although_the_threshold_is_chosen(mu):
    """A union bound over two intervals holds oftener than it says; chosen and tested on one half, it would not hold."""
    truth = gaussian_epsilon(mu, DELTA)
    above = sum(threshold_bound(*scores(mu, 400, seed), DELTA, 0.8).epsilon > truth for seed in range(150))
    assert above <= failures_allowed(150, 0.1)


@pytest.mark.parametrize("direction", [1, -1])
def test_the_threshold_bound_finds_either_tail(direction):
    """Randomized response, ε = 3 on one side: one score in ten tells that the record was in, or that it was not."""
    generator = np.random.default_rng(0)
    tell, told_wrongly = (generator.random(20_000) < rate for rate in (0.2, 0.2 * math.exp(-3)))
    sides = (tell, told_wrongly)[::direction]
    found = threshold_bound(*(direction * side.astype(float) for side in sides), 0.0, 0.95).epsilon
    assert 2.6 < found < 3.05


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_one_run_bounds_are_valid(mu):
    truth = gaussian_epsilon(mu, DELTA)
    found = [[bound.epsilon for bound in one_run_bounds(*one_run(mu, 300, seed), DELTA, 0.8)] for seed in range(60)]
    for above in (np.array(found) > truth).sum(0):
        assert above <= failures_allowed(60, 0.2)


def test_one_run_bounds_say_more_the_more_they_assume():
    counted, traded, gaussian = (b.epsilon for b in one_run_bounds(*one_run(2.0, 3000, 1), DELTA, 0.95))
    truth = gaussian_epsilon(2.0, DELTA)
    assert 2.0 < counted < traded < gaussian < truth
    assert gaussian > 0.5 * truth


def test_a_run_that_says_nothing_is_no_evidence():
    assert all(bound.epsilon == 0.0 for bound in one_run_bounds(*one_run(0.0, 500, 3), DELTA, 0.999))


def slow_p_value(m, r, v, epsilon, delta):
    """The theorem, term by term."""
    accuracy = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = [
        sum(math.comb(r, w) * accuracy**w * (1 - accuracy) ** (r - w) for w in range(max(0, t), r + 1))
        for t in range(v + 1)
    ]
    return tail[v] + 2 * m * delta * max((tail[v - i] - tail[v]) / i for i in range(1, v + 1))


@pytest.mark.parametrize(("r", "v", "epsilon"), [(10, 10, 0.5), (20, 16, 1.0), (20, 12, 0.1)])
def test_the_p_value_is_the_theorems(r, v, epsilon):
    assert dp_p_value(30, r, v, epsilon, 1e-3) == pytest.approx(min(1.0, slow_p_value(30, r, v, epsilon, 1e-3)))


def test_without_delta_and_abstention_randomized_response_is_exactly_on_the_edge():
    """m independent answers, each right with e^ε/(1+e^ε): the count is binomial, and no mechanism does better."""
    m, right, epsilon = 40, 33, 1.0
    exact = binom.sf(right - 1, m, 1 / (1 + math.exp(-epsilon)))
    assert dp_p_value(m, m, right, epsilon, 0.0) == pytest.approx(exact)
    assert not refutes(m, m, right, dp_inverse(epsilon, 0.0), exact)
    assert refutes(m, m, right, dp_inverse(epsilon / 2, 0.0), exact)


def test_independent_gaussian_guesses_are_not_refuted():
    """Of m canaries with independent N(0, 1) noise, guesses by the sign are right with Φ(μ/2)."""
    m, mu = 100, 1.0
    for right in (70, 80, 90):
        level = binom.sf(right - 1, m, norm.cdf(mu / 2))
        assert not refutes(m, m, right, gaussian_inverse(mu), level)
