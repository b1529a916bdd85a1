import io
import time

import pytest
from rich.console import Console

from lightning_gep.cli import monitor
from lightning_gep.cli.monitor import SweepMonitor, outcome_table
from lightning_gep.reporting.records import RunRecord, SweepRecord, locked

ACCOUNT = {"epsilon": 1.99951, "delta": 1e-4, "target_epsilon": 2.0, "private": True, "steps": 10}


def finished(job, **values):
    metrics = {"val/accuracy": 0.905, "test/accuracy": 0.9}
    return RunRecord(
        job, "finished", metrics=metrics, privacy=ACCOUNT, step=10, planned_steps=10, seconds=5.2, **values
    )


def shown(table, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_the_table_has_every_job_with_its_figures():
    runs = [finished("seed=0"), RunRecord("seed=1", "failed", error="no [red]luck"), None]
    text = shown(outcome_table(["seed=0", "seed=1", "seed=2"], runs))
    assert "3 jobs: 1 failed, 1 finished, 1 waiting" in text
    (row,) = [line for line in text.splitlines() if "seed=0" in line]
    for part in ("finished", "10/10", "2", "90.5 %", "90.0 %", "5 s"):
        assert part in row
    assert "1.9995" not in row, "ε is rounded up"


def test_a_long_sweep_shows_what_is_under_way_and_how_much_is_left_out():
    jobs = [f"seed={i}" for i in range(300)]
    runs = [finished(job) for job in jobs[:100]] + [RunRecord(jobs[100], "running")] + [None] * 199
    text = shown(outcome_table(jobs, runs, height=10))
    assert len(text.splitlines()) < 20
    assert "seed=100" in text
    assert "… and 290 more" in text


@pytest.fixture
def _looks_often(monkeypatch):
    monkeypatch.setattr(monitor, "SECONDS_BETWEEN_LOOKS", 0.05)


def wait_for(console, text):
    end = time.monotonic() + 30
    while text not in console.file.getvalue() and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.usefixtures("_looks_often")
def test_elsewhere_than_on_a_terminal_every_change_is_a_line(tmp_path):
    SweepRecord("s", jobs=["seed=0", "seed=1", "seed=2"]).write(tmp_path)
    for job in ("seed=0", "seed=1"):
        (tmp_path / job).mkdir()
    finished("seed=0").write(tmp_path / "seed=0")
    console = Console(file=io.StringIO(), width=200)
    with SweepMonitor(tmp_path, console), locked(tmp_path / "seed=1"):
        RunRecord("seed=1").write(tmp_path / "seed=1")
        wait_for(console, "running seed=1")
        finished("seed=1").write(tmp_path / "seed=1")
    assert console.file.getvalue().splitlines() == [
        "1 of 3 jobs are finished already.",
        "[2/3] running seed=1",
        "[2/3] finished seed=1: 10/10 steps, ε 2, validation 90.5 %, test 90.0 %, 5 s",
    ]
