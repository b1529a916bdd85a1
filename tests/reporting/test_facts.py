import math

from lightning_gep.reporting.facts import (
    NOT_COVERED,
    best_run,
    best_sentences,
    composition_sentence,
    not_covered,
    not_private_sentence,
    progress,
)
from lightning_gep.reporting.runs import Collection, Run, load
from tests.synthetic_runs import hold, write_run, write_sweep


def run(status="finished", validation=None, test=None, **more):
    metrics = {"val/accuracy": validation, "test/accuracy": test}
    known = {name: value for name, value in metrics.items() if value is not None}
    return Run(
        "job",
        status,
        metrics=known,
        **{"epsilon": 2.0, "delta": 1e-5, "noise_multiplier": 1.0, "private": True, **more},
    )


def test_progress_of_a_sweep_still_running(tmp_path):
    jobs = write_sweep(tmp_path, states=["running"] + ["waiting"] * 5)
    with hold(tmp_path / jobs[0]):
        assert progress(load(tmp_path).runs) == "12 of 18 finished, 1 running, 5 waiting"


def test_progress_of_one_run_and_of_unknown_states():
    assert progress([run("failed")]) == "failed"
    assert progress([run(), run("paused")]) == "1 of 2 finished, 1 paused"


def test_the_best_run_is_chosen_by_validation_and_never_by_test():
    by_validation, by_test = run(validation=0.9, test=0.5), run(validation=0.8, test=0.99)
    assert best_run([by_test, by_validation]) is by_validation


def test_runs_that_are_not_private_or_not_finished_are_not_best():
    good = [run(validation=0.7), run(validation=0.6)]
    seeded, infinite = run(validation=0.9, private=False), run(validation=0.9, epsilon=math.inf)
    assert best_run([seeded, infinite, run("running", validation=0.9), *good]) is good[0]
    assert best_run([seeded, good[0]]) is None, "one run is no choice"


def test_choosing_cost_privacy_as_the_card_says(tmp_path):
    write_sweep(tmp_path)
    collection = load(tmp_path)
    text = " ".join(best_sentences(collection, best_run(collection.runs)))
    assert "Choosing it cost privacy" in text
    assert "ε = 67.2, δ = 0.0018" in text
    assert "The 18 runs compose" in text


def test_without_a_card_the_runs_are_added_up():
    runs = [run(epsilon=1.5), run(epsilon=2.0001), run("failed", epsilon=0.5), run("waiting", epsilon=None)]
    text = composition_sentence(runs)
    assert "3 runs" in text
    assert "ε = 4.001, δ = 3e-05" in text


def test_what_cannot_be_added_up_is_not():
    assert "unknown" in composition_sentence([run(), run("running", epsilon=None)])
    assert "no finite ε" in composition_sentence([run(), run(private=False)])
    assert "1 run " in composition_sentence([run(), run("failed", epsilon=None)]), "it failed before its first step"


def test_runs_that_are_not_private_are_counted_by_reason():
    runs = [run(), run(private=False), run(private=False), run(private=False, noise_multiplier=0.0)]
    text = not_private_sentence(runs)
    assert text == "Not private: 1 run without noise (ε = ∞) and 2 runs whose sampling and noise are reproducible."
    assert not_private_sentence([run()]) == ""


def test_what_is_not_covered_is_as_the_cards_say(tmp_path):
    write_run(tmp_path / "one")
    assert "values logged as nonprivate/…" in not_covered(load(tmp_path))
    assert not_covered(Collection("x", [run()], [], [], [])) == NOT_COVERED
