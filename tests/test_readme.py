"""Every command and script of the README runs as printed, and its figures are those that were measured."""

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.running.outcome import results_of
from recipes.tables import MNIST_EPSILON2, MNIST_LARGER_EPSILON, TABLE1, THRESHOLDS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
SCRIPTS = [text for kind, text in BLOCKS if kind == "python"]


def run(command, cwd):
    # The environment the tests run in takes the place of `source .venv/bin/activate`.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


SAID = {
    "make train": "test accuracy",
    "gep-train mechanism=gp": "ε spent",
    "gep-train mechanism=none": "not private",
    "gep-plan": "noise",
    "gep-train -m": "4 jobs: 4 finished",
    "gep-report": "report.html",
}
"""What each command, by its beginning, has to print."""


def test_the_readme_has_what_these_tests_look_for():
    assert len(SCRIPTS) == 2
    assert len(COMMANDS) == len(SAID)
    assert all(command.startswith(said) for command, said in zip(COMMANDS, SAID, strict=True))


def test_make_train_is_the_default_job():
    recipe = (ROOT / "Makefile").read_text().split("\ntrain:")[1].split("\n\n")[0]
    assert recipe.splitlines()[1:] == ["\t$(BIN)/gep-train"]


@pytest.mark.slow
@pytest.mark.parametrize("commands", [[command] for command in COMMANDS[:4]] + [COMMANDS[4:]], ids=lambda c: c[0])
def test_commands_as_they_are_printed(commands, tmp_path):
    """The report needs the sweep before it; the others stand alone."""
    for command in commands:
        printed = run(command.replace("make train", "gep-train").split(), tmp_path)
        assert next(said for start, said in SAID.items() if command.startswith(start)) in printed
    if commands == ["make train"]:
        accuracy = re.search(r"test accuracy\W+([\d.]+) %", printed)[1]
        assert float(accuracy) > 80, "the default job learns"
    assert len(commands) == 1 or (tmp_path / "sweeps" / "first" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=["training", "calibration"])
def test_scripts(script, tmp_path):
    (tmp_path / "script.py").write_text(script)
    assert run([sys.executable, "script.py"], tmp_path).strip()


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"


def percent(table, cell, digits=1):
    """Mean and spread of the results of a cell, as the README writes them."""
    values = [100 * result["test_accuracy"] for result in results_of(table)[cell]]
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def test_accuracies_are_those_of_the_results():
    mechanisms = ("gp", "bgep", "gep")
    paper = " | ".join(percent(TABLE1, f"mnist_{name}_eps2", 2) for name in mechanisms)
    ours = " | ".join(percent(MNIST_EPSILON2, f"mnist_best{name}", 2) for name in ("_gp", "_bgep", ""))
    rows = [line for line in README.splitlines() if line.startswith("| ")]
    (row,) = [line for line in rows if line.startswith("| the paper's settings")]
    assert row.endswith(f" | {paper} |")
    (row,) = [line for line in rows if line.startswith("| `experiment=mnist_best`")]
    assert row.endswith(f" | {ours} |")
    words = " ".join(README.split())
    larger = {name: percent(MNIST_LARGER_EPSILON, name) for name in ("gep_eps5", "gep_eps8", "gp_eps5", "gp_eps8")}
    assert "GEP {gep_eps5} and {gep_eps8} %, GP {gp_eps5} and {gp_eps8} %".format(**larger) in words
    names = {"gp": "mnist_gp_eps2_threshold_alone", "gep": "mnist_gep_eps2_thresholds_alone"}
    alone = {mechanism: percent(THRESHOLDS, name) for mechanism, name in names.items()}
    assert "GP has {gp} % and GEP, with our basis, {gep} % (one run each)".format(**alone) in words
