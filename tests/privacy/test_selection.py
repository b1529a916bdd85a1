"""What several runs on the same records cost together."""

import copy
import math
import time

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import LARGEST_TIGHT_EPSILON, Rdp, SampledGaussian, epsilon, pld_grid
from lightning_gep.privacy.rounding import shown_epsilon
from lightning_gep.privacy.selection import (
    MOST_EVENTS,
    Candidate,
    _costlier,
    _merged,
    composed_cost,
    repeat_and_select_cost,
    single_selection,
    sweep_selection,
)

A, B = SampledGaussian(0.02, 1.5), SampledGaussian(0.05, 3.0)


def by_rdp(history, delta):
    accountant = RdpAccountant(Rdp.ORDERS)
    for event, steps in history:
        gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(event.sample_rate, gaussian), steps)
    return accountant.get_epsilon(delta)


def test_two_different_runs_cost_what_dp_accounting_composes():
    histories = [[(A, 300)], [(B, 100)]]
    reference = by_rdp([(A, 300), (B, 100)], 1e-5)
    assert composed_cost(histories, 1e-5, "rdp") == pytest.approx(reference, rel=1e-12)
    tight = PLDAccountant(value_discretization_interval=pld_grid(reference))
    for history in histories:
        for event, steps in history:
            tight.compose(event.to_dp_event(), steps)
    assert composed_cost(histories, 1e-5, "pld") == pytest.approx(tight.get_epsilon(1e-5), rel=1e-9)
    assert composed_cost(histories, 1e-5, "pld") > max(epsilon(history, 1e-5, "pld") for history in histories)


def test_equal_runs_cost_as_one_run_of_all_their_steps():
    together = epsilon([(A, 900)], 1e-5, "pld")
    assert composed_cost([[(A, 300)]] * 3, 1e-5, "pld") == together
    assert _merged([(A, 300)] * 3) == [(A, 900)]


def test_no_run_costs_nothing_and_one_without_noise_everything():
    assert composed_cost([], 1e-5) == 0
    assert composed_cost([[(A, 0)]], 1e-5) == 0
    assert composed_cost([[(A, 10)], [(SampledGaussian(0.1, 0.0), 1)]], 1e-5) == math.inf
    many = [[(SampledGaussian(0.01, 0.5 + i / 100), 10)] for i in range(100)]
    assert composed_cost([*many, [(SampledGaussian(0.1, 0.0), 1)]], 1e-5) == math.inf


def test_merged_events_cost_at_least_as_much_and_little_more():
    history = [(SampledGaussian(0.02 + i / 5000, 2.0 + i / 30), 40) for i in range(100)]
    merged = _merged(history)
    assert len(merged) <= MOST_EVENTS
    assert sum(steps for _, steps in merged) == 100 * 40
    exact = by_rdp(history, 1e-5)
    found = composed_cost([history], 1e-5, "rdp")
    assert exact <= found <= 1.15 * exact


@given(st.floats(1e-6, 1), st.floats(1e-3, 1e3), st.floats(1.002, 10))
def test_a_merged_event_is_costlier_than_each_in_it(rate, sigma, ratio):
    merged = _costlier(SampledGaussian(rate, sigma), ratio)
    assert rate <= merged.sample_rate <= min(1.0, rate * ratio * (1 + 1e-9))
    assert sigma / ratio * (1 - 1e-9) <= merged.noise_multiplier <= sigma
    assert _costlier(SampledGaussian(rate, 0.0), ratio).noise_multiplier == 0


@pytest.mark.parametrize(("cheaper", "costlier"), [((0.02, 1.5), (0.025, 1.5)), ((0.02, 1.5), (0.02, 1.3))])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_more_sampling_and_less_noise_cost_more(cheaper, costlier, accountant):
    low, high = (epsilon([(SampledGaussian(*event), 200)], 1e-5, accountant) for event in (cheaper, costlier))
    assert low < high


@pytest.mark.parametrize("different", [False, True])
def test_three_hundred_runs_are_counted_in_seconds(different):
    histories = [[(SampledGaussian(0.02, 4.0 + (i / 40 if different else 0)), 100)] for i in range(300)]
    start = time.process_time()
    found = composed_cost(histories, 1e-5, "pld")
    assert time.process_time() - start < 20
    assert 1 < found < LARGEST_TIGHT_EPSILON


def card(epsilon=3.0, *, sigma=1.5, rate=0.02, steps=300, planned=300, status="finished", private=True, delta=1e-5):
    """As much of a card as the cost of a sweep needs."""
    return {
        "status": status,
        "guarantee": {
            "private": private,
            "delta": delta,
            "accountant": "pld",
            "epsilon_spent": {"pld": epsilon, "rdp": epsilon},
        },
        "mechanism": {"name": "gep", "noise_multiplier": sigma, "k": 10},
        "sampling": {"sample_rate": rate},
        "steps": {"counted": steps, "planned": planned},
    }


def test_a_grid_is_a_composition():
    block = sweep_selection([card(), card(sigma=3.0, rate=0.05, steps=100)], rule="grid")
    total = composed_cost([[(A, 300)], [(B, 100)]], 1e-5, "pld")
    assert block["epsilon"] == total
    assert block["delta"] == 1e-5
    assert (block["runs"], block["rule"], block["accountant"], block["complete"]) == (2, "composition", "pld", True)
    assert block["explanation"] == (
        "2 runs on the same records; if the best was chosen, all of them were paid for: "
        f"ε = {shown_epsilon(total)} at δ = 1e-5 by composition (PLD)."
    )
    assert sweep_selection([card(), card(sigma=3.0, rate=0.05, steps=100)], rule="composition") == block


def test_a_large_total_says_that_it_comes_from_rdp():
    block = sweep_selection([card(steps=30_000)] * 18)
    assert block["epsilon"] > LARGEST_TIGHT_EPSILON
    assert block["accountant"] == "rdp"
    assert "(RDP)" in block["explanation"]


def test_the_smallest_delta_of_the_runs_holds_for_all():
    assert sweep_selection([card(delta=1e-4), card(delta=1e-6)])["delta"] == 1e-6


def test_a_run_that_has_not_ended_counts_as_planned_and_the_block_says_so():
    block = sweep_selection([card(), card(steps=10, status="training")])
    assert block["epsilon"] == composed_cost([[(A, 600)]], 1e-5, "pld")
    assert not block["complete"]
    assert "Not all runs have ended" in block["explanation"]
    assert sweep_selection([card(steps=310, planned=300, status="training")])["epsilon"] == epsilon([(A, 310)], 1e-5)


def test_a_run_that_was_stopped_costs_what_it_released():
    block = sweep_selection([card(), card(steps=10, status="stopped")])
    assert block["epsilon"] == composed_cost([[(A, 310)]], 1e-5, "pld")
    assert block["complete"]


def test_a_run_without_a_card_leaves_the_sweep_incomplete():
    block = sweep_selection([card(), None])
    assert (block["runs"], block["complete"]) == (2, False)
    assert "1 of them left no card and are not in this figure" in block["explanation"]
    with pytest.raises(ConfigurationError, match="no card of any run"):
        sweep_selection([None])


def test_one_run_that_is_not_private_spoils_the_sweep():
    for rule, repetitions in (("composition", None), ("repeat_and_select", {"mean": 3, "shape": 1})):
        block = sweep_selection([card(), card(private=False)], rule=rule, repetitions=repetitions)
        assert block["epsilon"] == "inf"
        assert "not private" in block["explanation"]
    assert sweep_selection([card(), card(sigma=0.0)])["epsilon"] == "inf"


@pytest.mark.parametrize("repetitions", [{"mean": 10, "shape": "inf"}, {"mean": 10, "distribution": "poisson"}])
def test_a_random_number_of_runs_is_repeat_and_select_and_stays_unknown(repetitions):
    cards = [card(), card(sigma=3.0, rate=0.05, steps=100, planned=120)]
    block = sweep_selection(cards, rule="repeat_and_select", repetitions=repetitions)
    # The second run was planned for 120 steps: another of its kind could have made them.
    candidates = [Candidate(A, 300), Candidate(B, 120)]
    assert block["epsilon"] == repeat_and_select_cost(candidates, 1e-5, mean=10, shape=math.inf)
    assert block["runs"] is None
    assert "2" not in block["explanation"].replace("2022", "").replace(shown_epsilon(block["epsilon"]), "")
    assert block["repetitions"] == {
        "mean": 10.0,
        "shape": "inf",
        "distribution": "poisson",
        "all_candidates_counted": False,
    }
    assert any("not even how many there were" in line for line in block["conditions"])
    assert "holds if no other on the list costs more" in block["explanation"]
    more = sweep_selection(cards * 5, rule="repeat_and_select", repetitions=repetitions)
    assert more == block, "the block must not tell how many runs there were"


def test_settings_that_were_not_drawn_count_too():
    costly = {"sample_rate": 0.1, "noise_multiplier": 1.0, "steps": 300}
    repetitions = {"mean": 10, "shape": 1, "candidates": [costly]}
    block = sweep_selection([card()], rule="repeat_and_select", repetitions=repetitions)
    candidates = [Candidate(A, 300), Candidate(SampledGaussian(0.1, 1.0), 300)]
    assert block["epsilon"] == repeat_and_select_cost(candidates, 1e-5, mean=10, shape=1)
    assert block["repetitions"]["all_candidates_counted"]
    assert "no other on the list" not in block["explanation"]


def test_repeat_and_select_needs_its_distribution():
    with pytest.raises(ConfigurationError, match="needs the distribution"):
        sweep_selection([card()], rule="repeat_and_select")
    with pytest.raises(ConfigurationError, match="rule='best' is not known"):
        sweep_selection([card()], rule="best")


def test_a_single_run_says_that_other_runs_are_not_included():
    block = single_selection(3.0, 1e-5, "pld", complete=True)
    assert (block["runs"], block["rule"], block["epsilon"]) == (1, "single", 3.0)
    assert "not included" in block["explanation"]


def test_cards_are_not_changed():
    cards = [card(), card(private=False)]
    before = copy.deepcopy(cards)
    sweep_selection(cards)
    assert cards == before
