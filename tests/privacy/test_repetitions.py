"""The best of a random number of runs: against dp-accounting, against numerical integration, and the draws."""

import itertools
import math
import random
from collections import Counter

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant, compute_epsilon, rdp_privacy_accountant
from scipy import integrate, stats

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import Rdp, SampledGaussian, epsilon
from lightning_gep.privacy.repetitions import Distribution, repeat_and_select_cost

INF = math.inf
SHAPES = [INF, 0.0, 0.5, 1.0, 4.0]
RUN = (SampledGaussian(0.02, 1.1), 500)


def probability(count, mean, shape):
    return dict(itertools.takewhile(lambda pair: pair[0] <= count, Distribution(mean, shape).probabilities())).get(
        count, 0.0
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.0, 2.5, 20.0, 300.0])
def test_one_candidate_costs_what_dp_accounting_says(shape, mean):
    event = dp_accounting.SelfComposedDpEvent(RUN[0].to_dp_event(), RUN[1])
    accountant = RdpAccountant(Rdp.ORDERS).compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(event, mean, shape))
    expected = accountant.get_epsilon(1e-5)
    assert repeat_and_select_cost([RUN], 1e-5, Distribution(mean, shape)) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_several_candidates_cost_the_largest_rdp_at_each_order(shape):
    # The curves cross: few steps with little noise cost more at large orders, many with much noise at small ones.
    candidates = [(SampledGaussian(0.05, 0.8), 20), (SampledGaussian(0.02, 2.0), 5000)]
    curves = [RdpAccountant(Rdp.ORDERS).compose(event.to_dp_event(), steps).rdp for event, steps in candidates]
    assert (curves[0] > curves[1]).any()
    assert (curves[0] < curves[1]).any()
    one_run = np.maximum(*curves)
    selected = rdp_privacy_accountant._compute_rdp_repeat_and_select(np.array(Rdp.ORDERS), one_run, 10.0, shape)
    expected = compute_epsilon(Rdp.ORDERS, selected, 1e-5)[0]
    found = repeat_and_select_cost(candidates, 1e-5, Distribution(10.0, shape))
    assert found == pytest.approx(expected, rel=1e-8)
    assert found >= max(repeat_and_select_cost([c], 1e-5, Distribution(10.0, shape)) for c in candidates)
    assert repeat_and_select_cost(candidates * 3, 1e-5, Distribution(10.0, shape)) == found


def density_of_the_largest(x, centre, sigma, mean, shape):
    """Density at x of the largest of a random number of draws from N(centre, σ²), by the generating function."""
    f, F = stats.norm.pdf(x, centre, sigma), stats.norm.cdf(x, centre, sigma)
    if shape == INF:
        return mean * f * np.exp(mean * (F - 1))
    if shape == 1:
        gamma = 1 / mean
        return gamma * f / (1 - (1 - gamma) * F) ** 2
    low, high = 1e-9, 1 - 1e-9  # γ by halving
    for _ in range(200):
        gamma = (low + high) / 2
        low, high = (gamma, high) if (1 / gamma - 1) / math.log(1 / gamma) > mean else (low, gamma)
    return (1 - gamma) / math.log(1 / gamma) * f / (1 - (1 - gamma) * F)


@pytest.mark.parametrize("shape", [INF, 1.0, 0.0])
@pytest.mark.parametrize("mean", [3.0, 50.0])
def test_the_figure_holds_for_the_largest_of_gaussians_and_that_of_one_run_does_not(shape, mean):
    sigma, delta = 2.0, 1e-5
    x = np.linspace(-30, 31, 200_001)
    sides = [density_of_the_largest(x, centre, sigma, mean, shape) for centre in (0.0, 1.0)]
    for side in sides:
        total = integrate.trapezoid(side, x)
        assert total == pytest.approx(1 - math.exp(-mean) if shape == INF else 1, abs=1e-6)

    def delta_at(eps):
        return max(integrate.trapezoid(np.maximum(0, a - math.exp(eps) * b), x) for a, b in (sides, sides[::-1]))

    run = (SampledGaussian(1.0, sigma), 1)
    assert delta_at(repeat_and_select_cost([run], delta, Distribution(mean, shape))) <= delta
    if mean == 50:
        assert delta_at(epsilon([run], delta, "pld")) > delta


def test_no_noise_in_any_candidate_is_no_privacy():
    assert repeat_and_select_cost([RUN, (SampledGaussian(0.1, 0.0), 1)], 1e-5, Distribution(5, 1)) == INF


def exact(shape, mean):
    """The distribution from its definition, by scipy, with γ from dp-accounting."""
    if shape == INF:
        return lambda k: stats.poisson.pmf(k, mean)
    gamma = rdp_privacy_accountant._gamma_truncated_negative_binomial(shape, mean, tolerance=1e-13)
    if shape == 0:
        return lambda k: stats.logser.pmf(k, 1 - gamma)
    inner = stats.nbinom(shape, gamma)
    return lambda k: inner.pmf(k) / (1 - inner.pmf(0)) if k > 0 else 0.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 8.0, 200.0])
def test_the_probabilities_are_those_of_the_definition(shape, mean):
    reference = exact(shape, mean)
    for k in [0, 1, 2, 3, 10, 50, 300]:
        assert probability(k, mean, shape) == pytest.approx(reference(k), rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("shape", SHAPES)
def test_draws_follow_the_probabilities(shape):
    draws, mean, chance = 20_000, 4.0, random.Random(3)
    seen = Counter(Distribution(mean, shape).draw(chance) for _ in range(draws))
    bins = [k for k in range(60) if draws * probability(k, mean, shape) > 20]
    expected = [draws * probability(k, mean, shape) for k in bins]
    expected.append(draws - sum(expected))
    observed = [seen[k] for k in bins]
    observed.append(draws - sum(observed))
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    assert (seen[0] > 0) == (shape == INF)
    wrong = [draws * probability(k, 4.3, shape) for k in bins]
    wrong.append(draws - sum(wrong))
    assert stats.chisquare(observed, wrong).pvalue < 1e-4, "the test has to tell another mean from this one"


def test_a_mean_of_one_is_one_run_and_extreme_draws_end():
    assert {Distribution(1.0, shape).draw(random.Random(0)) for shape in (0.0, 1.0, 2.0)} == {1}

    class Last(random.Random):
        def random(self):
            return 1 - 2**-53

    for shape in SHAPES:
        assert 10 < Distribution(10, shape).draw(Last()) < 10_000


def test_the_default_draws_from_the_operating_system():
    assert isinstance(Distribution.draw.__defaults__[0], random.SystemRandom)


@pytest.mark.parametrize(
    ("shape", "found", "name"),
    [("poisson", INF, "poisson"), ("inf", INF, "poisson"), (1, 1.0, "geometric"), ("logarithmic", 0.0, "logarithmic"),
     ("2.5", 2.5, "truncated negative binomial with shape 2.5")],
)  # fmt: skip
def test_distributions_by_name(shape, found, name):
    distribution = Distribution.from_mapping({"mean": 3, "shape": shape})
    assert (distribution.mean, distribution.shape, distribution.name) == (3.0, found, name)


@pytest.mark.parametrize("shape", ["normal", -1, math.nan, 1e4, None])
def test_an_unknown_distribution_is_refused(shape):
    with pytest.raises(ConfigurationError, match="Use 'poisson', 'geometric'"):
        Distribution.from_mapping({"mean": 10, "shape": shape})


@pytest.mark.parametrize("mean", [0.5, math.nan, INF, 501])
def test_an_impossible_mean_is_refused(mean):
    with pytest.raises(ConfigurationError, match="mean number of runs must lie between 1 and 500"):
        Distribution(mean, INF)
