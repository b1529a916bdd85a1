"""What several runs on the same records cost: composed, and as the best of a random number of runs."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon, rdp_privacy_accountant
from scipy import integrate, stats

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import RDP_ORDERS, SampledGaussian, epsilon
from lightning_gep.privacy.card.sweep import sweep_selection
from lightning_gep.privacy.ledger import read
from lightning_gep.privacy.rounding import shown_epsilon
from lightning_gep.privacy.selection import Distribution, RunCost, composed_cost, repeat_and_select_cost
from tests.cards import account

INF = math.inf
SHAPES = [INF, 0.0, 1.0]
ONE, MANY = (SampledGaussian(0.02, 1.1), 500), Distribution(5, 1)
A, B = SampledGaussian(0.02, 1.5), SampledGaussian(0.05, 3.0)
RUN = RunCost(A, 300, 300, 1e-5)
OTHER = RunCost(B, 100, 120, 1e-5)


def composed_by(accountant, history, delta):
    for event, steps in history:
        accountant.compose(event.to_dp_event(), steps)
    return accountant.get_epsilon(delta)


def by_rdp(history, delta):
    return composed_by(RdpAccountant(RDP_ORDERS), history, delta)


def test_two_different_runs_cost_what_dp_accounting_composes():
    histories = [[(A, 300)], [(B, 100)]]
    assert composed_cost(histories, 1e-5, "rdp") == pytest.approx(by_rdp([(A, 300), (B, 100)], 1e-5), rel=1e-12)
    tight = composed_by(PLDAccountant(), [(A, 300), (B, 100)], 1e-5)
    assert tight * (1 - 1e-9) <= composed_cost(histories, 1e-5, "pld") <= 1.0001 * tight
    assert tight > max(epsilon(history, 1e-5, "pld") for history in histories)


def test_no_run_costs_nothing_and_one_without_noise_everything():
    silent = [(SampledGaussian(0.1, 0.0), 1)]
    assert composed_cost([], 1e-5) == composed_cost([[(A, 0)]], 1e-5) == 0
    assert composed_cost([[(A, 10)], silent], 1e-5) == repeat_and_select_cost([ONE, *silent], 1e-5, MANY) == INF


def test_many_different_events_are_counted_by_rdp_and_the_block_says_so(monkeypatch):
    for module in ("selection", "card.sweep"):
        monkeypatch.setattr(f"lightning_gep.privacy.{module}.MOST_EVENTS", 2)
    runs = [RunCost(SampledGaussian(0.02, 2.0 + i), 40) for i in range(3)]
    exact = by_rdp([pair for run in runs for pair in run.history], 1e-5)
    block = sweep_selection([replace(run, delta=1e-5) for run in runs])
    assert (block["epsilon"], block["accountant"]) == (pytest.approx(exact, rel=1e-12), "rdp")


def test_a_sweep_is_a_composition():
    block = sweep_selection([RUN, OTHER])
    total = composed_cost([[(A, 300)], [(B, 100)]], 1e-5, "pld")
    assert (block["epsilon"], block["delta"]) == (total, 1e-5)
    assert (block["runs"], block["rule"], block["accountant"], block["complete"]) == (2, "composition", "pld", True)
    smaller = sweep_selection([RUN, replace(OTHER, delta=1e-6, steps=0)])
    assert smaller["delta"] == 1e-6, "the smallest δ holds for all"
    assert f"all of them were paid for: ε = {shown_epsilon(total)} at δ = 1e-5" in block["explanation"]


def test_a_run_that_has_not_ended_counts_as_planned_and_one_that_was_stopped_as_released():
    running = sweep_selection([RUN, replace(RUN, steps=10, ended=False)])
    assert running["epsilon"] == composed_cost([[(A, 600)]], 1e-5, "pld")
    assert not running["complete"]
    assert "Not all runs have ended" in running["explanation"]
    stopped = sweep_selection([RUN, replace(RUN, steps=10)])
    assert stopped["epsilon"] == composed_cost([[(A, 310)]], 1e-5, "pld")
    assert stopped["complete"]


def test_a_job_that_released_nothing_leaves_the_sweep_incomplete():
    block = sweep_selection([RUN, None])
    assert (block["runs"], block["complete"]) == (2, False)
    assert "1 of them released nothing so far" in block["explanation"]
    with pytest.raises(ConfigurationError, match="No run has released anything"):
        sweep_selection([None])


@pytest.mark.parametrize("bad", [replace(RUN, private=False), RunCost(SampledGaussian(1.0, 0.0), 10, private=False)])
def test_one_run_that_is_not_private_spoils_the_sweep(bad):
    for repetitions in (None, {"mean": 3, "distribution": "geometric"}):
        block = sweep_selection([RUN, bad], repetitions=repetitions)
        assert block["epsilon"] == "inf"
        assert "not private" in block["explanation"]


def test_a_random_number_of_runs_is_repeat_and_select_and_stays_unknown():
    repetitions = {"mean": 10, "distribution": "poisson"}
    block = sweep_selection([RUN, OTHER], repetitions=repetitions)
    # The second run was planned for 120 steps: another of its kind could have made them.
    assert block["epsilon"] == repeat_and_select_cost([(A, 300), (B, 120)], 1e-5, Distribution(10, math.inf))
    assert block["runs"] is None
    assert "2" not in block["explanation"].replace("2022", "").replace(shown_epsilon(block["epsilon"]), "")
    assert block["repetitions"] == {**repetitions, "shape": "inf", "all_candidates_counted": False}
    assert any("not even how many there were" in line for line in block["conditions"])
    assert "if no other setting on the list costs more" in block["explanation"]
    more = sweep_selection([RUN, OTHER] * 5, repetitions=repetitions)
    assert more == block, "the block must not tell how many runs there were"


def test_settings_that_were_not_drawn_count_too():
    costly = {"sample_rate": 0.1, "noise_multiplier": 1.0, "steps": 300}
    repetitions = {"mean": 10, "distribution": "geometric", "candidates": [costly]}
    block = sweep_selection([RUN], repetitions=repetitions)
    candidates = [(A, 300), (SampledGaussian(0.1, 1.0), 300)]
    assert block["epsilon"] == repeat_and_select_cost(candidates, 1e-5, Distribution(10, 1))
    assert block["repetitions"]["all_candidates_counted"]
    assert "no other setting on the list" not in block["explanation"]


def test_the_cost_of_a_run_is_in_its_ledger(tmp_path):
    run = account(steps=0)
    run.open_ledger(tmp_path / "ledger")
    for _ in range(3):
        run.charge()
    cost = RunCost(run.plan.event, 3, 100, 1e-4, "rdp")
    assert RunCost.from_ledger(read(tmp_path / "ledger"), private=True, ended=True) == cost


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.0, 10.0, 300.0])
def test_candidates_cost_what_dp_accounting_says_for_the_largest_rdp_at_each_order(shape, mean):
    # The curves cross: few steps with little noise cost more at large orders, many with much noise at small ones.
    candidates, distribution = (
        [(SampledGaussian(0.05, 0.8), 20), (SampledGaussian(0.02, 2.0), 5000)],
        Distribution(mean, shape),
    )
    curves = [RdpAccountant(RDP_ORDERS).compose(event.to_dp_event(), steps).rdp for event, steps in candidates]
    assert (curves[0] > curves[1]).any()
    assert (curves[0] < curves[1]).any()
    selected = rdp_privacy_accountant._compute_rdp_repeat_and_select(
        np.array(RDP_ORDERS), np.maximum(*curves), mean, shape
    )
    found = repeat_and_select_cost(candidates, 1e-5, distribution)
    assert found == pytest.approx(compute_epsilon(RDP_ORDERS, selected, 1e-5)[0], rel=1e-8)
    assert repeat_and_select_cost(candidates * 3, 1e-5, distribution) == found


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


def exact(mean, shape):
    """The distribution from its definition, by scipy, with γ from dp-accounting."""
    if shape == INF:
        return stats.poisson(mean)
    gamma = rdp_privacy_accountant._gamma_truncated_negative_binomial(shape, mean, tolerance=1e-13)
    return stats.geom(gamma) if shape == 1 else stats.logser(1 - gamma)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 50.0])
def test_draws_follow_the_definition(shape, mean):
    draws, generator = 20_000, np.random.default_rng(3)
    seen = Counter(Distribution(mean, shape).draw(generator) for _ in range(draws))
    bins = [k for k in range(400) if draws * exact(mean, shape).pmf(k) > 20]

    def p_value(distribution):
        observed, expected = [seen[k] for k in bins], draws * distribution.pmf(bins)
        observed, expected = [*observed, draws - sum(observed)], [*expected, draws - sum(expected)]
        return stats.chisquare(observed, expected).pvalue

    assert p_value(exact(mean, shape)) > 1e-6
    assert p_value(exact(1.5 * mean, shape)) < 1e-6, "the test has to tell another mean from this one"


def test_a_mean_of_one_is_one_run_and_no_seed_repeats_a_draw():
    assert {Distribution(mean, shape).draw() for shape in (0.0, 1.0) for mean in (1.0, 1 + 1e-12)} == {1}

    def seeded():
        np.random.seed(0)
        return [Distribution(200, 1.0).draw() for _ in range(20)]

    assert seeded() != seeded()


@pytest.mark.parametrize("mean", [0.5, math.nan, INF, 501])
def test_an_impossible_mean_is_refused(mean):
    with pytest.raises(ConfigurationError, match="mean number of runs must lie between 1 and 500"):
        Distribution(mean, INF)
