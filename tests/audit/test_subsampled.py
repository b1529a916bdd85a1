"""δ(ε) of subsampled Gaussians by Monte Carlo, beside dp-accounting's PLD and sums over all outcomes."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from lightning_gep.audit.estimators import gaussian_epsilon
from lightning_gep.audit.subsampled import StepLoss, TiltedRuns, subsampled_bound
from lightning_gep.privacy.accounting import SampledGaussian, by_rdp, epsilon
from tests.reference import gaussian_delta

SVHN = {"sample_rate": 1000 / 604388, "steps": 12087, "delta": 1e-6}
"""The paper's settings for ε = 8; the authors' code has σ = 0.60 for each of the two parts."""


@pytest.mark.parametrize(
    ("shifts", "sample_rate", "steps", "delta"),
    [
        ((1 / 0.6, 1 / 0.6), *SVHN.values()),
        ((1 / 2.09, 1 / 2.09), 0.02, 10_000, 1e-5),
        ((0.8,), 0.2, 150, 1e-4),
        ((0.3,), 0.5, 20, 1e-5),
        ((0.5,), 1.0, 1, 1e-5),
    ],
)
def test_the_bound_is_just_below_what_dp_accounting_gives(shifts, sample_rate, steps, delta):
    sigma = math.hypot(*shifts) ** -1
    claimed = epsilon([(SampledGaussian(sample_rate, sigma), steps)], delta)
    found = subsampled_bound(shifts, sample_rate, steps, delta).epsilon
    assert 0.98 * claimed < found < claimed


def test_it_exposes_twice_the_rdp_of_a_subsampled_gaussian():
    """Counting the parts as two subsampled Gaussians is right only if each has a draw of its own; they share one."""
    rate, steps, delta = SVHN.values()
    two_draws = by_rdp([(SampledGaussian(rate, 0.6), 2 * steps)], delta)
    assert two_draws < 8.1, "what the authors' code claims"
    assert subsampled_bound((1 / 0.6, 1 / 0.6), rate, steps, delta, confidence=0.999).epsilon > 18


def test_it_holds_as_often_as_it_says():
    """Of one step at q = 1 the truth is known exactly. The bound is conservative, so fewer failures than allowed."""
    truth = gaussian_epsilon(1.0, 1e-4)
    above = [subsampled_bound((1.0,), 1.0, 1, 1e-4, 0.8, draws=500, seed=seed).epsilon > truth for seed in range(60)]
    assert sum(above) <= binom.isf(1e-7, 60, 0.2)


@pytest.mark.parametrize(("tilt", "at"), [(0.0, 1.0), (0.5, 4.0), (1.5, 8.0)])
def test_tilted_draws_estimate_delta_without_bias(tilt, at):
    runs = TiltedRuns.draw(StepLoss.of((1.0,), 1.0), 4, tilt, 20_000, np.random.default_rng(1))
    values, truth = runs.values(at), gaussian_delta(2.0, at)
    assert values.mean() == pytest.approx(truth, abs=5 * values.std() / len(values) ** 0.5 + 1e-4 * truth)
    assert values.max() <= runs.largest_value(at) * (1 + 1e-9)
    assert 0.9 * truth < runs.least_delta(at, 0.95) < values.mean()


def test_the_loss_of_a_step_is_that_of_the_mixture():
    """E[e^(−ℓ)] under the canary is 1, and the mean loss is an integral that quadrature gives."""
    step = StepLoss.of((0.6, 0.8), 0.1)
    assert step.log_moment(-1.0) == pytest.approx(0.0, abs=1e-9)
    assert step.log_moment(0.0) == pytest.approx(0.0, abs=1e-9)
    x = np.linspace(-12, 13, 200_001)
    absent, drawn = (np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (0.0, 1.0))
    mixed = 0.9 * absent + 0.1 * drawn
    mean = np.trapezoid(mixed * np.log(mixed / absent), x)
    assert step.tilted(0.0) @ step.values == pytest.approx(mean, rel=1e-3)


def test_two_parts_on_one_draw_are_one_longer_shift():
    one, two = StepLoss.of((1.0,), 0.1), StepLoss.of((0.6, 0.8), 0.1)
    assert two.values == pytest.approx(one.values)


def test_where_delta_is_out_of_reach_the_bound_is_zero():
    assert subsampled_bound((0.001,), 0.01, 1, 1e-3).epsilon == 0.0
