import math

from lightning_gep.reporting.facts import (
    COLUMNS,
    best_run,
    best_sentences,
    cells,
)
from lightning_gep.reporting.runs import Run, load
from tests.synthetic_runs import write_run, write_sweep


def run(status="finished", validation=None, test=None, **more):
    metrics = {"val/accuracy": validation, "test/accuracy": test}
    known = {name: value for name, value in metrics.items() if value is not None}
    settings = {"epsilon": 2.0, "delta": 1e-5, "noise_multiplier": 1.0, "private": True, **more}
    return Run("job", status, metrics=known, **settings)


def test_the_best_run_is_private_finished_and_chosen_by_validation_accuracy():
    by_validation, by_test = run(validation=0.7, test=0.5), run(validation=0.6, test=0.99)
    seeded, infinite = run(validation=0.9, private=False), run(validation=0.9, epsilon=math.inf)
    unfinished = run("running", validation=0.9)
    assert best_run([seeded, infinite, unfinished, by_test, by_validation]) is by_validation
    assert best_run([seeded, by_test]) is None, "one run is no choice"
    assert best_run([seeded, by_test], least=1) is by_test


def test_choosing_cost_privacy_as_the_card_says(tmp_path):
    write_sweep(tmp_path)
    collection = load(tmp_path)
    text = " ".join(best_sentences(collection, best_run(collection.runs)))
    assert "Choosing it cost privacy" in text
    assert "ε = 67.2, δ = 0.0018" in text
    assert "The 18 runs compose" in text


def test_the_cells_of_a_run(tmp_path):
    write_run(tmp_path / "one", epsilon=8.0, metrics={"val/accuracy": 0.9137, "test/accuracy": 0.9})
    shown = cells(load(tmp_path / "one").single)
    expected = "one finished GEP 100 7.999|/|8 0.0001 91.4|% 90.0|% 150|/|150 24.0|s 820|MB"
    assert list(shown.values()) == [text.replace("|", " ") for text in expected.split()]


def test_a_waiting_job_claims_nothing(tmp_path):
    write_sweep(tmp_path, states=["waiting"])
    waiting = load(tmp_path).runs[0]
    shown = cells(waiting)
    assert [shown[key] for key in ("validation", "test", "steps", "time", "memory", "delta")] == ["–"] * 6
    assert shown["epsilon"] == "– / 2"
    assert next(column for column in COLUMNS if column.key == "epsilon").sorts_as(waiting) == ""
