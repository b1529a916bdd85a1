"""What several runs on the same records cost together."""

import math
import time
from dataclasses import replace

import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import LARGEST_TIGHT_EPSILON, Rdp, SampledGaussian, epsilon
from lightning_gep.privacy.ledger import read
from lightning_gep.privacy.repetitions import Distribution, repeat_and_select_cost
from lightning_gep.privacy.rounding import shown_epsilon
from lightning_gep.privacy.selection import RunCost, composed_cost, single_selection, sweep_selection
from tests.cards import a_card, account

A, B = SampledGaussian(0.02, 1.5), SampledGaussian(0.05, 3.0)
RUN = RunCost(A, 300, 300, 1e-5)
OTHER = RunCost(B, 100, 120, 1e-5)


def composed_by(accountant, history, delta):
    for event, steps in history:
        accountant.compose(event.to_dp_event(), steps)
    return accountant.get_epsilon(delta)


def by_rdp(history, delta):
    return composed_by(RdpAccountant(Rdp.ORDERS), history, delta)


def test_two_different_runs_cost_what_dp_accounting_composes():
    histories = [[(A, 300)], [(B, 100)]]
    assert composed_cost(histories, 1e-5, "rdp") == pytest.approx(by_rdp([(A, 300), (B, 100)], 1e-5), rel=1e-12)
    tight = composed_by(PLDAccountant(), [(A, 300), (B, 100)], 1e-5)
    assert tight * (1 - 1e-9) <= composed_cost(histories, 1e-5, "pld") <= 1.0001 * tight
    assert tight > max(epsilon(history, 1e-5, "pld") for history in histories)


def test_no_run_costs_nothing_and_one_without_noise_everything():
    assert composed_cost([], 1e-5) == 0
    assert composed_cost([[(A, 0)]], 1e-5) == 0
    assert composed_cost([[(A, 10)], [(SampledGaussian(0.1, 0.0), 1)]], 1e-5) == math.inf
    many = [[(SampledGaussian(0.01, 0.5 + i / 100), 10)] for i in range(100)]
    assert composed_cost([*many, [(SampledGaussian(0.1, 0.0), 1)]], 1e-5) == math.inf


@pytest.mark.parametrize("event", [lambda i: (0.02 + i / 5000, 2.0 + i / 30), lambda i: (1.0 - i / 1000, 40.0 + i)])
def test_merged_events_cost_at_least_as_much_and_little_more(event):
    history = [(SampledGaussian(*event(i)), 40) for i in range(55)]
    exact = by_rdp(history, 1e-5)
    assert exact <= composed_cost([history], 1e-5, "rdp") <= 1.15 * exact


@pytest.mark.slow
def test_three_hundred_different_runs_are_counted_in_seconds():
    histories = [[(SampledGaussian(0.02, 4.0 + i / 40), 100)] for i in range(300)]
    start = time.process_time()
    found = composed_cost(histories, 1e-5, "pld")
    assert time.process_time() - start < 20
    assert 1 < found < LARGEST_TIGHT_EPSILON


def test_a_grid_is_a_composition():
    block = sweep_selection([RUN, OTHER], rule="grid")
    total = composed_cost([[(A, 300)], [(B, 100)]], 1e-5, "pld")
    assert (block["epsilon"], block["delta"]) == (total, 1e-5)
    assert (block["runs"], block["rule"], block["accountant"], block["complete"]) == (2, "composition", "pld", True)
    assert f"all of them were paid for: ε = {shown_epsilon(total)} at δ = 1e-5" in block["explanation"]
    assert sweep_selection([RUN, OTHER], rule="composition") == block


def test_the_smallest_delta_of_the_runs_holds_for_all():
    assert sweep_selection([replace(RUN, delta=1e-4), replace(RUN, delta=1e-6)])["delta"] == 1e-6


def test_a_run_that_has_not_ended_counts_as_planned_and_one_that_was_stopped_as_released():
    running = sweep_selection([RUN, replace(RUN, steps=10, ended=False)])
    assert running["epsilon"] == composed_cost([[(A, 600)]], 1e-5, "pld")
    assert not running["complete"]
    assert "Not all runs have ended" in running["explanation"]
    beyond = sweep_selection([replace(RUN, steps=310, ended=False)])
    assert beyond["epsilon"] == epsilon([(A, 310)], 1e-5)
    stopped = sweep_selection([RUN, replace(RUN, steps=10)])
    assert stopped["epsilon"] == composed_cost([[(A, 310)]], 1e-5, "pld")
    assert stopped["complete"]


def test_a_job_that_released_nothing_leaves_the_sweep_incomplete():
    block = sweep_selection([RUN, None])
    assert (block["runs"], block["complete"]) == (2, False)
    assert "1 of them released nothing so far" in block["explanation"]
    with pytest.raises(ConfigurationError, match="No run has released anything"):
        sweep_selection([None])


@pytest.mark.parametrize("bad", [replace(RUN, private=False), RunCost.without_privacy(10, ended=True)])
def test_one_run_that_is_not_private_spoils_the_sweep(bad):
    for rule, repetitions in (("composition", None), ("repeat_and_select", {"mean": 3, "shape": 1})):
        block = sweep_selection([RUN, bad], rule=rule, repetitions=repetitions)
        assert block["epsilon"] == "inf"
        assert "not private" in block["explanation"]


@pytest.mark.parametrize("repetitions", [{"mean": 10, "shape": "inf"}, {"mean": 10, "distribution": "poisson"}])
def test_a_random_number_of_runs_is_repeat_and_select_and_stays_unknown(repetitions):
    block = sweep_selection([RUN, OTHER], rule="repeat_and_select", repetitions=repetitions)
    # The second run was planned for 120 steps: another of its kind could have made them.
    assert block["epsilon"] == repeat_and_select_cost([(A, 300), (B, 120)], 1e-5, Distribution(10, math.inf))
    assert block["runs"] is None
    assert "2" not in block["explanation"].replace("2022", "").replace(shown_epsilon(block["epsilon"]), "")
    assert block["repetitions"] == {
        "mean": 10.0,
        "shape": "inf",
        "distribution": "poisson",
        "all_candidates_counted": False,
    }
    assert any("not even how many there were" in line for line in block["conditions"])
    assert "if no other setting on the list costs more" in block["explanation"]
    more = sweep_selection([RUN, OTHER] * 5, rule="repeat_and_select", repetitions=repetitions)
    assert more == block, "the block must not tell how many runs there were"


def test_settings_that_were_not_drawn_count_too():
    costly = {"sample_rate": 0.1, "noise_multiplier": 1.0, "steps": 300}
    repetitions = {"mean": 10, "shape": 1, "candidates": [costly]}
    block = sweep_selection([RUN], rule="repeat_and_select", repetitions=repetitions)
    candidates = [(A, 300), (SampledGaussian(0.1, 1.0), 300)]
    assert block["epsilon"] == repeat_and_select_cost(candidates, 1e-5, Distribution(10, 1))
    assert block["repetitions"]["all_candidates_counted"]
    assert "no other setting on the list" not in block["explanation"]


def test_repeat_and_select_needs_its_distribution():
    with pytest.raises(ConfigurationError, match="needs the distribution"):
        sweep_selection([RUN], rule="repeat_and_select")
    with pytest.raises(ConfigurationError, match="rule='best' is not known"):
        sweep_selection([RUN], rule="best")


def test_a_single_run_says_that_other_runs_are_not_included():
    block = single_selection(3.0, 1e-5, "pld", complete=True)
    assert (block["runs"], block["rule"], block["epsilon"]) == (1, "single", 3.0)
    assert "not included" in block["explanation"]


def test_a_cost_is_the_same_from_a_card_and_from_a_ledger(tmp_path):
    run = account(steps=0)
    run.open_ledger(tmp_path / "ledger")
    for _ in range(3):
        run.charge()
    cost = RunCost(run.plan.event, 3, 100, 1e-4, "rdp")
    assert RunCost.from_ledger(read(tmp_path / "ledger"), private=True, ended=True) == cost
    mechanism = {**a_card()["mechanism"], "noise_multiplier": run.noise_multiplier}
    assert RunCost.from_card(a_card(steps=3, mechanism=mechanism)) == cost
    assert not RunCost.from_card(a_card(status="training")).ended
    assert RunCost.from_card(a_card(status="stopped")).ended
    assert not RunCost.from_card(a_card(generator="seeded")).private
