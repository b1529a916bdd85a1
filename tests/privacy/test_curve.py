import math
import time

import pytest

from lightning_gep.privacy.accounting import SampledGaussian, epsilon
from lightning_gep.privacy.curve import EpsilonCurve

EVENT = SampledGaussian(0.02, 1.2)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "prv"])
def test_the_curve_is_above_the_accountant_rising_and_exact_at_the_planned_end(accountant):
    curve = EpsilonCurve(EVENT, 1e-5, accountant, 500)
    values = [curve(steps) for steps in range(1, 501)]
    assert values == sorted(values)
    assert curve(500) == epsilon([(EVENT, 500)], 1e-5, accountant)
    for steps in (1, 17, 100, 250, 401, 499):
        true = epsilon([(EVENT, steps)], 1e-5, accountant)
        assert true <= curve(steps) * (1 + 1e-4)
    for steps in (100, 250, 401):
        assert curve(steps) <= 1.15 * epsilon([(EVENT, steps)], 1e-5, accountant)


def test_past_the_plan_it_goes_on():
    curve = EpsilonCurve(EVENT, 1e-5, "pld", 100)
    assert curve(101) > curve(100)
    true = epsilon([(EVENT, 350)], 1e-5)
    assert true * (1 - 1e-4) <= curve(350) <= 1.1 * true, "both are upper bounds, rounded in different places"


def test_asking_every_step_costs_nothing():
    curve = EpsilonCurve(EVENT, 1e-5, "pld", 3000)
    curve(1)
    start = time.process_time()
    for steps in range(3000):
        curve(steps)
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize("steps", [1, 2, 3, 31, 32, 33, 65])
def test_short_plans(steps):
    curve = EpsilonCurve(EVENT, 1e-5, "pld", steps)
    assert curve(steps) == epsilon([(EVENT, steps)], 1e-5)


def test_the_limits():
    assert EpsilonCurve(EVENT, 1e-5, "pld", 10)(0) == 0.0
    assert EpsilonCurve(SampledGaussian(0.02, 0.0), 1e-5, "pld", 10)(1) == math.inf
    large = EpsilonCurve(SampledGaussian(0.5, 0.1), 1e-5, "pld", 100)
    assert 50 < large(50) <= large(100) < math.inf
