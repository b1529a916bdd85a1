"""What the tables list and what the results page says: the committed results and nothing else."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from lightning_gep.cli.configs import config_directory
from recipes import results
from recipes.measured.figures import FIGURES
from recipes.page import PAGE, page
from recipes.page.plots import draw
from recipes.page.summary import PICTURE, compared, summary
from recipes.running.outcome import (
    RESULTS,
    counts,
    read_result,
    result_file,
    results_of,
    write_result,
)
from recipes.running.settings import settings_of
from recipes.tables import COMPARISONS, TABLE1, TABLES, TUNING, runs_in_order
from recipes.tables.ours import BEST, HELD_OUT
from recipes.tables.paper import ACCURACY_AGAINST_K
from recipes.tables.types import Run

ROOT = Path(__file__).parents[2]
EXPERIMENTS = config_directory() / "experiment"
CELLS = [(table, cell) for table in TABLES for cell in table.cells]
COMMITTED = [run for run in runs_in_order() if result_file(RESULTS, run).exists()]
CELL = {cell.name: cell for cell in TABLE1.cells}


def result(run, accuracy=0.95, **changes):
    """As a run leaves it."""
    versions = dict.fromkeys(("python", "torch", "lightning", "opacus", "dp_accounting", "lightning_gep"), "1.0")
    return {
        "experiment": run.cell.experiment,
        "overrides": list(run.cell.overrides),
        "extra_overrides": [],
        "seed": run.seed,
        "test_accuracy": accuracy,
        "validation_accuracy": None,
        "epsilon": 1.99951,
        "sample_rate": 0.1,
        "steps": 30,
        "seconds": 90.0,
        "machine": {"processor": "a processor", "cores": 2, "memory_gb": 8.0},
        "versions": {**versions, "git_dirty": False},
        "curves": {"test_accuracy": [[10, 0.5], [30, accuracy]], "epsilon": [[30, 1.99951]]},
        **changes,
    }


def write(output, runs, *accuracies, **changes):
    for run, accuracy in zip(runs, accuracies, strict=True):
        write_result(result_file(output, run), result(run, accuracy, **changes))


@cache
def settings_of_cell(cell):
    """Composed once for all of its seeds."""
    return settings_of(Run("a table", cell, 0))


def row(lines, cell):
    (found,) = [line for line in lines if line.startswith(f"| {cell.panel}: {cell.line} |")]
    return [part.strip() for part in found.split("|")[2:-1]]


def test_every_experiment_is_in_a_table_and_every_run_has_a_name_of_its_own():
    assert {cell.experiment for _, cell in CELLS} == {
        path.relative_to(EXPERIMENTS).with_suffix("").as_posix()
        for path in EXPERIMENTS.rglob("*.yaml")
        if path.parent != EXPERIMENTS or path.stem in BEST.values()
    }
    names = [run.name for run in runs_in_order()]
    assert len(set(names)) == len(names) == sum(len(cell.seeds) for _, cell in CELLS)
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_published_figures_are_those_in_the_experiment_files():
    told = [cell for _, cell in CELLS if cell.published is not None and not cell.experiment.startswith("mnist_best")]
    assert len(told) == 4 + 27 + 2 + 12 + 4 + 6
    for cell in told:
        words = (EXPERIMENTS / f"{cell.experiment}.yaml").read_text().replace("\n#", "")
        assert f"Published: {cell.published} %" in words
        assert ("mean of five runs" in words) == (cell.published_spread is not None)
    mechanisms = {name: mechanism for mechanism, name in BEST.items() if mechanism != "spectral"}  # not of the paper
    for table, cell in CELLS:
        if cell.experiment in mechanisms and table is not TUNING and "aux=synthetic" not in cell.overrides:
            epsilon = settings_of_cell(cell)["privacy"]["epsilon"]
            same = CELL[f"mnist_{mechanisms[cell.experiment]}_eps{epsilon:g}"]
            assert (cell.published, cell.published_epsilon) == (same.published, same.published_epsilon)


def test_the_page_has_means_with_their_spread_and_draws_what_there_is(tmp_path):
    gep = CELL["mnist_gep_eps2"]
    write(tmp_path, TABLE1.runs([gep.name]), 0.964, 0.966, 0.968)
    over_k = ACCURACY_AGAINST_K.runs()[0]
    write(tmp_path, [over_k], 0.95)
    assert results.main(["--tables-only", "--output", str(tmp_path)]) == 0
    written = (tmp_path / PAGE).read_text()
    assert row(written.splitlines(), gep) == ["96.3", "1.6", "96.60 ± 0.20", "3 of 3", "2", "30", "1 min 30 s"]
    assert row(written.splitlines(), over_k.cell) == ["–", "–", "95.00", "1 of 1", "2", "30", "1 min 30 s"]
    pictures = re.findall(r"\]\(([\w/]+\.svg)\)", written)
    assert pictures == ["table1.svg", "accuracy_against_k.svg"]
    assert all("<svg" in (tmp_path / picture).read_text() for picture in pictures)
    assert "- 4 runs: a processor, 2 cores, 8.0 GB; python 1.0, torch 1.0, " in written
    assert written.count("Not run.") == len(FIGURES)


def test_a_table_with_nothing_but_its_baseline_has_no_picture(tmp_path):
    baseline = ACCURACY_AGAINST_K.baseline[0]
    nothing = {cell.name: [] for cell in ACCURACY_AGAINST_K.cells}
    draw(ACCURACY_AGAINST_K, {baseline.cell.name: [result(baseline)], **nothing}, tmp_path)
    assert not list(tmp_path.glob("*.svg"))


def test_trials_are_judged_on_validation_images_and_never_on_test_images(tmp_path):
    trials = TUNING.runs(["bgep_k1000_lr2"])
    curves = {"test_accuracy": [[30, 0.1234]], "validation_accuracy": [[30, 0.97]]}
    write(tmp_path, trials, 0.1234, validation_accuracy=0.97, curves=curves)
    written = page(tmp_path)
    assert row(written.splitlines(), trials[0].cell) == ["97.00", "1 of 1", "2", "30", "1 min 30 s"]
    assert "12.34" not in written
    draw(TUNING, results_of(TUNING, tmp_path), tmp_path)
    assert "validation accuracy, %" in (tmp_path / "tuning.svg").read_text()
    assert all(settings_of_cell(cell)["data"]["validation_size"] == 5000 for cell in TUNING.cells)


EARLIER = {"gp_lr1": 97.36, "gp_lr2": 97.42, "gp_lr3": 97.1, "gep_lr1": 97.5, "gep_lr2": 97.7, "gep_lr3": 97.4}
"""Validation accuracies of the trials that settings were chosen by first, whose runs were not kept."""


def test_earlier_trials_are_those_of_the_page_on_tuning():
    cells = (RESULTS / "tuning.md").read_text().replace("**", "")
    rows = re.findall(
        r"^\| (GP|GEP), ?[^|]*\| (\d) \|[^|]*\| ([\d.]+)(?: \(([\d.]+)\))? \|", cells.replace("| GP |", "| GP, |"), re.M
    )
    assert {f"{name.lower()}_lr{rate}": float(exact or shown) for name, rate, shown, exact in rows} == EARLIER


@pytest.mark.parametrize("experiment", BEST.values())
def test_our_settings_are_those_of_the_best_trial(experiment):
    """By the mean of all trials with the same settings; nothing is reported before every setting has one."""
    trials = {}
    for run in TUNING.runs():
        if run.cell.experiment == experiment:
            kept = [100 * read_result(result_file(RESULTS, run))["validation_accuracy"]] if run in COMMITTED else []
            trials[run.cell] = kept + [EARLIER[name] for name in (run.cell.name,) if name in EARLIER]
    if not all(trials.values()):
        assert not [run.name for run in COMMITTED if run.table != TUNING.name and run.cell.experiment == experiment]
        return
    best = max(trials, key=lambda cell: fmean(trials[cell]))
    chosen = settings_of(Run("a table", replace(best, overrides=(HELD_OUT,)), 0))
    assert settings_of_cell(best) == chosen, f"the best trial is {best.name}"


def test_results_with_other_settings_are_not_on_the_page(tmp_path):
    runs = TABLE1.runs(["svhn_gep_eps2"])
    empty = page(tmp_path)
    for wrong in ({"extra_overrides": ["trainer.max_steps=2"]}, {"overrides": ["data.extra=false"]}, {"seed": 5}):
        write(tmp_path, runs, 0.95, **wrong)
        assert page(tmp_path) == empty
    write(tmp_path, runs, 0.95)
    assert page(tmp_path) != empty


def test_the_committed_page_is_that_of_the_committed_results():
    written, readme = (RESULTS / PAGE).read_text(), (ROOT / "recipes/README.md").read_text()
    assert page() == written, "python -m recipes.results --tables-only writes it anew"
    assert all((RESULTS / link).is_file() for link in re.findall(r"\]\(([^)#]+)\)", written))
    headings = {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in written.splitlines()}
    assert set(re.findall(r"results/README\.md#([^)]+)\)", readme)) <= headings
    names = [*(table.name for table in TABLES), *(figure.NAME for figure in FIGURES)]
    assert re.findall(r"^\| `(\w+)`", readme, re.MULTILINE) == names


def test_a_committed_result_is_of_its_cells_settings_and_names_no_machine():
    files = {path.name for path in (RESULTS / "runs").glob("*.json")}
    assert files == {result_file(RESULTS, run).name for run in COMMITTED}, "a result that belongs to no cell"
    for run in COMMITTED:
        found = read_result(result_file(RESULTS, run))
        assert counts(found, run), run.name
        settings = {**settings_of_cell(run.cell), "seed": run.seed}
        assert found["config"] == settings, f"{run.name}: its settings have changed; run it again or delete it"
        assert found["private"] == ("no_privacy" not in (run.table, run.cell.name)), run.name
        assert not re.search(r'"(~|\.{0,2})/|https?:', json.dumps(found)), run.name


def write_setting(output, setting, **accuracies):
    for name, values in accuracies.items():
        cell = setting.table.runs([setting.cells[name]])[0].cell
        write(output, [Run(setting.table.name, cell, seed) for seed in range(len(values))], *values)


def test_a_difference_has_the_error_of_both_sides_and_a_single_run_decides_nothing(tmp_path):
    for setting in COMPARISONS:
        assert setting.cells.keys() > {"GP"}
        assert set(setting.cells.values()) <= {cell.name for cell in setting.table.cells}
        assert setting.without_privacy in {cell.name for cell in setting.table.rows}
    assert summary(compared(COMPARISONS, tmp_path), {}) == []
    several, single = COMPARISONS[2], COMPARISONS[3]
    write_setting(tmp_path, several, GP=(0.93, 0.94, 0.95), GEP=(0.96, 0.96, 0.96), spectral=(0.9,))
    write_setting(tmp_path, single, GP=(0.5,), GEP=(0.9,))
    first, second = compared(COMPARISONS, tmp_path)
    assert first.ahead("GEP").points == pytest.approx(2.0)
    assert first.ahead("GEP").standard_error == pytest.approx(1 / 3**0.5)
    accuracies = ["–", "94.00 ± 1.00", "96.00 ± 0.00", "90.00"]
    assert first.row == [several.label, *accuracies, "+2.00 ± 0.58", "-4.00, one run", "3, 3, 1"]
    assert second.row[-3:] == ["+40.00, one run", "–", "1, 1, 0"]
    assert second.ahead("spectral") is None
    written = "\n".join(summary([first, second], {second.label: 0.456}))
    assert f"ahead of GP by more than twice that error in: {several.label}.\n" in written
    assert f"]({PICTURE})" in written
    assert [line.rpartition(" | ")[2] for line in written.splitlines() if line.startswith(("| MN", "| …"))] == [
        "– |",
        "46% |",
    ]
