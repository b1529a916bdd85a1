import math

from lightning_gep.reporting.facts import COLUMNS, error_line, means
from lightning_gep.reporting.runs import Run, load
from tests.synthetic_runs import write_run, write_sweep


def cells(run):
    return {column.key: column.cell(run) for column in COLUMNS}


def test_the_cells_of_a_run(tmp_path):
    write_run(tmp_path / "one", epsilon=8.0, metrics={"val/accuracy": 0.9137, "test/accuracy": 0.9})
    shown = {key: cell.text for key, cell in cells(load(tmp_path / "one").single).items()}
    assert shown == {
        "job": "one",
        "status": "finished",
        "mechanism": "GEP",
        "k": "100",
        "epsilon": "7.999 / 8",
        "delta": "0.0001",
        "validation": "91.4 %",
        "test": "90.0 %",
        "steps": "150 / 150",
        "time": "24.0 s",
        "memory": "820 MB",
    }


def test_a_waiting_job_claims_nothing(tmp_path):
    write_sweep(tmp_path, states=["waiting"])
    shown = cells(load(tmp_path).runs[0])
    assert [shown[key].text for key in ("validation", "test", "steps", "time", "memory", "delta")] == ["–"] * 6
    assert shown["epsilon"].text == "– / 2"
    assert shown["epsilon"].value is None


def test_infinite_epsilon_is_shown_as_such():
    assert cells(Run("x", "finished", epsilon=math.inf))["epsilon"].text == "∞"


def test_means_over_seeds_by_hand():
    runs = [
        Run("x", "finished", mechanism="gep", epsilon=1.9991, target_epsilon=2.0, delta=1e-5, metrics=metrics)
        for metrics in ({"val/accuracy": 0.8, "test/accuracy": 0.81}, {"val/accuracy": 0.84}, {"val/accuracy": 0.82})
    ]
    failed = Run("x", "failed", mechanism="gep", epsilon=1.0, target_epsilon=2.0, metrics={"val/accuracy": 0.1})
    assert means([*runs, failed]).rows == [["GEP", "2", "2", "1e-5", "3", "82.00 ± 2.00", "81.00 (1 run)"]]


def test_the_line_of_an_error_that_matters():
    assert error_line("Traceback (most recent call last):\n  File x\nValueError: no\n") == "ValueError: no"
    assert error_line("out of memory\nat step 3") == "out of memory"
    assert len(error_line("x" * 500)) == 160
    assert error_line("") == ""
