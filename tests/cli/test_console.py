import io
import subprocess
import sys
import time

from rich.console import Console

from lightning_gep.cli import console as printing
from lightning_gep.cli.console import outcome_table, watched
from lightning_gep.reporting.records import RunRecord, locked

SCRIPT = """
import logging, os, subprocess, sys
from pathlib import Path
from lightning_gep.cli.console import output_into, terminal

print("first")
handler = logging.StreamHandler(sys.stderr)  # made before, as loggers of libraries are
with terminal() as console, output_into(Path("console.log")):
    print("by print")
    os.write(2, b"by descriptor\\n")
    handler.stream.write("by an old handler\\n")
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
    console.print("on the terminal")
print("last")
with output_into(Path("console.log")):
    print("second attempt")
"""
ACCOUNT = {"epsilon": 1.99951, "delta": 1e-4, "target_epsilon": 2.0, "private": True, "steps": 10}


def test_what_a_job_prints_goes_to_its_file_and_the_terminal_stays_in_reach(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout + done.stderr == "first\non the terminal\nlast\n"
    *first, second = (tmp_path / "console.log").read_text().splitlines()
    assert set(first) == {"by print", "by descriptor", "by an old handler", "by a child"}
    assert second == "second attempt", "written below the first"


def finished(job):
    metrics = {"val/accuracy": 0.905, "test/accuracy": 0.9}
    return RunRecord(job, "finished", metrics=metrics, privacy=ACCOUNT, step=10, planned_steps=10, seconds=5.2)


def shown(table):
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def test_the_table_has_every_job_with_its_figures():
    runs = {"seed=0": finished("seed=0"), "seed=1": RunRecord("seed=1", "failed", error="no [red]luck"), "seed=2": None}
    text = shown(outcome_table(runs))
    assert "3 jobs: 1 failed, 1 finished, 1 waiting" in text
    (row,) = [line for line in text.splitlines() if "seed=0" in line]
    for part in ("finished", "10 / 10", "2 / 2", "90.5 %", "90.0 %", "5.2 s"):
        assert part in row
    assert "1.9995" not in row, "ε is rounded up"


def test_a_long_sweep_shows_what_is_under_way_and_how_much_is_left_out():
    jobs = [f"seed={i}" for i in range(300)]
    runs = {**dict.fromkeys(jobs), **{job: finished(job) for job in jobs[:100]}, jobs[100]: RunRecord(jobs[100])}
    text = shown(outcome_table(runs, height=10))
    assert len(text.splitlines()) < 20
    assert "seed=100" in text
    assert "… and 290 more" in text


def test_changes_are_lines_or_on_a_terminal_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(printing, "SECONDS_BETWEEN_LOOKS", 0.05)
    finished("seed=0").write(tmp_path / "seed=0")
    lines, terminal = Console(file=io.StringIO(), width=200), Console(file=io.StringIO(), force_terminal=True)
    jobs = ["seed=0", "seed=1", "seed=2"]
    (tmp_path / "seed=1").mkdir()
    with watched(tmp_path, jobs, lines), watched(tmp_path, jobs, terminal), locked(tmp_path / "seed=1"):
        RunRecord("seed=1").write(tmp_path / "seed=1")
        end = time.monotonic() + 30
        while "running seed=1" not in lines.file.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
        finished("seed=1").write(tmp_path / "seed=1")
    assert lines.file.getvalue().splitlines() == [
        "1 of 3 jobs are finished already.",
        "[2/3] running seed=1",
        "[2/3] finished seed=1: ε spent / target 2 / 2, Validation 90.5 %, Test 90.0 %, Steps 10 / 10, Time 5.2 s",
    ]
    assert "3 jobs: 2 finished, 1 waiting" in terminal.file.getvalue()
