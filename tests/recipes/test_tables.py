"""What the recipes list and what their page says: it is the committed results and nothing else."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache

import pytest
import torch

from lightning_gep.cli.configs import config_directory
from lightning_gep.privacy.accounting import SampledGaussian, epsilon
from lightning_gep.privacy.files import CARD_FILE
from lightning_gep.reporting.published import EPSILONS
from lightning_gep.reporting.published import RESULTS as PAPER
from recipes import first_epochs, mnist_epsilon2, no_privacy, results, table1, tuning
from recipes.all_tables import TABLES, runs_in_order
from recipes.running.cells import Run
from recipes.running.outcome import (
    MOST_POINTS,
    RESULTS,
    counts,
    made_with,
    read_result,
    result_file,
    results_of,
    thinned,
    write_result,
)
from recipes.running.overview import README, overview
from recipes.running.page import FIGURES, PAGE, page
from recipes.running.page_table import in_short, section
from recipes.running.plots import draw_all
from recipes.running.settings import settings_of

EXPERIMENTS = config_directory() / "experiment"
CELLS = [(table, cell) for table in TABLES for cell in table.cells]
COMMITTED = [run for run in runs_in_order() if result_file(RESULTS, run).exists()]
SVHN_GEP = next(cell for cell in table1.TABLE.cells if cell.name == "svhn_gep_eps2")
MNIST_GEP = next(cell for cell in table1.TABLE.cells if cell.name == "mnist_gep_eps2")


def result(run, accuracy=0.95, **changes):
    """As a run leaves it."""
    versions = dict.fromkeys(("python", "torch", "lightning", "opacus", "dp_accounting", "lightning_gep"), "1.0")
    versions["git_dirty"] = False
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
        "versions": versions,
        "curves": {"test_accuracy": [[10, 0.5], [30, accuracy]], "epsilon": [[30, 1.99951]]},
        **changes,
    }


@cache
def settings_of_cell(cell):
    """Composed once for all of its seeds."""
    return settings_of(Run("a table", cell, 0))


def row(lines, cell):
    (found,) = [line for line in lines if line.startswith(f"| {cell.panel}: {cell.label} |")]
    return [part.strip() for part in found.split("|")[2:-1]]


def test_every_experiment_of_the_paper_is_in_a_table():
    used = {cell.experiment for _, cell in CELLS}
    assert used == {
        path.relative_to(EXPERIMENTS).with_suffix("").as_posix()
        for path in EXPERIMENTS.rglob("*.yaml")
        if path.parent != EXPERIMENTS or path.stem in mnist_epsilon2.BEST
    }


def test_names_are_those_of_files_and_there_is_none_twice():
    names = [run.name for run in runs_in_order()]
    assert len(set(names)) == len(names) == sum(len(cell.seeds) for _, cell in CELLS)
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_published_figures_are_those_that_the_experiments_tell():
    told = [cell for _, cell in CELLS if cell.published is not None and not cell.experiment.startswith("mnist_best")]
    assert len(told) == 4 + 27 + 2 + 12 + 4 + 6
    for cell in told:
        words = (EXPERIMENTS / f"{cell.experiment}.yaml").read_text().replace("\n#", "")
        assert f"Published: {cell.published} %" in words
        assert ("mean of five runs" in words) == (cell.published_spread is not None)


def test_our_settings_stand_beside_the_same_figures_as_in_table_1():
    published = {cell.name: (cell.published, cell.published_epsilon) for cell in table1.TABLE.cells}
    names = {"mnist_best": "gep", "mnist_best_bgep": "bgep", "mnist_best_gp": "gp"}
    ours = [cell for table, cell in CELLS if cell.experiment in names and table is not tuning.TABLE]
    assert len(ours) == 3 + 4
    for cell in ours:
        epsilon = settings_of_cell(cell)["privacy"]["epsilon"]
        assert cell.panel == f"MNIST, ε = {epsilon:g}"
        assert (cell.published, cell.published_epsilon) == published[f"mnist_{names[cell.experiment]}_eps{epsilon:g}"]


def test_the_true_epsilon_stands_beside_the_published_figure():
    assert SVHN_GEP.published_epsilon == PAPER["SVHN"].by_pld["gep"][EPSILONS.index(2.0)] == 3.06
    assert row(section(table1.TABLE, {cell.name: [] for cell in table1.TABLE.rows}), SVHN_GEP) == [
        "92.3",
        "3.06",
        "not run",
        "0 of 1",
        "–",
        "–",
        "–",
    ]


def test_every_table_is_read_against_its_rows_without_privacy():
    for table in set(TABLES) - {no_privacy.TABLE, tuning.TABLE}:
        assert table.baseline, table.name
        assert all(run.cell.experiment.startswith("no_privacy/") for run in table.baseline)
        results = {cell.name: [] for cell in table.rows}
        assert "not run yet" not in "\n".join(section(table, results)), "nothing is run, so nothing misses it"
        results[table.cells[0].name] = [result(table.runs()[0], 0.5, validation_accuracy=0.5)]
        lines = section(table, results)
        assert lines[2].startswith("**The row without privacy is not run yet for ")
        first = next(line for line in lines if line.startswith("| ") and "---" not in line and "published" not in line)
        assert "no privacy" in first


def test_a_network_that_cannot_learn_without_privacy_is_said_before_anything_else():
    results = {cell.name: [] for cell in table1.TABLE.rows}
    for run, accuracy in zip(table1.TABLE.baseline, (0.989, 0.941, 0.4), strict=True):
        results[run.cell.name] = [result(run, accuracy, epsilon="inf")]
    lines = section(table1.TABLE, results)
    assert lines[2].startswith(
        "**Without privacy far below the published figure: CIFAR-10 40.00 % instead of 90.4 %.**"
    )
    (row,) = [line for line in lines if line.startswith("| CIFAR-10: no privacy")]
    assert row.split(" | ")[1:6] == ["90.4", "–", "40.00", "1 of 1", "∞"]


def test_the_order_is_what_says_most_for_its_time():
    names = [run.name for run in runs_in_order()]
    cifar10 = ("gp_eps2", "tracked_gep_eps2", "tracked_bgep_eps2")
    assert names[:4] == ["no_privacy-cifar10-seed0", *(f"table1-cifar10_{cell}-seed0" for cell in cifar10)]
    first = {
        prefix: next(i for i, name in enumerate(names) if name.startswith(prefix))
        for prefix in (
            "table1-svhn_ordinary",
            "no_privacy-mnist",
            "table1-mnist_gp_eps2-seed0",
            "linear_probe-",
            "first_epochs-",
            "table1-mnist_gp_eps2-seed1",
            "mnist_epsilon2-rdp-",
            "mnist_larger_epsilon-",
            "table1-mnist_gp_eps5",
        )
    }
    assert list(first.values()) == sorted(first.values())
    assert first["table1-svhn_ordinary"] < min(
        names.index(name) for name in ("table1-cifar10_gp_eps8-seed0", "anchors-gep_m2000-seed0")
    )


def test_our_own_table_is_made_of_the_files_there_are(tmp_path):
    assert mnist_epsilon2.cells(tmp_path) == ()
    (tmp_path / "mnist_epsilon2").mkdir()
    (tmp_path / "mnist_best.yaml").write_text("# @package _global_\n# The best. Tuned on\n# validation.\ndata: 1\n")
    (tmp_path / "mnist_epsilon2" / "joint.yaml").write_text("# @package _global_\ndata: 1\n")
    best, joint = mnist_epsilon2.cells(tmp_path)
    assert (best.name, best.line, best.experiment, best.seeds) == ("mnist_best", "The best", "mnist_best", (0, 1, 2))
    assert (joint.line, joint.experiment) == ("joint", "mnist_epsilon2/joint")


def test_the_page_has_means_with_their_spread_and_draws_what_there_is(tmp_path, capsys):
    runs = table1.TABLE.runs([MNIST_GEP.name])
    for run, accuracy in zip(runs, (0.964, 0.966, 0.968), strict=True):
        write_result(result_file(tmp_path, run), result(run, accuracy, steps=30 - run.seed))
    (over_k, *_) = next(table for table in TABLES if table.name == "accuracy_against_k").runs()
    write_result(result_file(tmp_path, over_k), result(over_k))
    assert results.main(["--tables-only", "--output", str(tmp_path)]) == 0
    assert PAGE in capsys.readouterr().out
    written = (tmp_path / PAGE).read_text()
    assert row(written.splitlines(), MNIST_GEP) == [
        "96.3",
        "1.6",
        "96.60 ± 0.20",
        "3 of 3",
        "2",
        "28 – 30",
        "1 min 30 s",
    ]
    assert row(written.splitlines(), over_k.cell) == ["–", "–", "95.00", "1 of 1", "2", "30", "1 min 30 s"]
    pictures = re.findall(r"\]\(([\w/]+\.svg)\)", written)
    assert pictures == ["table1.svg", "accuracy_against_k.svg", "accuracy_against_k_over_k.svg"]
    assert all("<svg" in (tmp_path / picture).read_text() for picture in pictures)
    assert "MNIST, ε = 2" in (tmp_path / "table1.svg").read_text()
    assert "- 4 runs: a processor, 2 cores, 8.0 GB; python 1.0, torch 1.0, " in written
    assert page(tmp_path) == written
    assert README.read_text() == overview(README.read_text(), TABLES, FIGURES), (
        "another page is no reason to change the list"
    )


def test_long_labels_stand_beside_where_the_runs_end(tmp_path):
    for run in (*mnist_epsilon2.TABLE.runs(["mnist_best", "cold_start"]), *table1.TABLE.runs([MNIST_GEP.name])):
        write_result(result_file(tmp_path, run), result(run, 0.97 + run.seed / 1000))
    draw_all([mnist_epsilon2.TABLE, table1.TABLE], tmp_path)
    in_words, short = ((tmp_path / f"{name}.svg").read_text() for name in ("mnist_epsilon2", "table1"))
    assert "at the end" in in_words
    assert ">GEP with our settings<" in in_words
    assert "legend" not in in_words
    assert "legend" in short
    assert "at the end" not in short


def test_trials_are_judged_on_validation_images_and_never_on_test_images(tmp_path):
    (trial,) = tuning.TABLE.runs(["bgep_k1000_lr2"])
    curves = {"test_accuracy": [[30, 0.1234]], "validation_accuracy": [[30, 0.97]]}
    write_result(result_file(tmp_path, trial), result(trial, 0.1234, validation_accuracy=0.97, curves=curves))
    written = page(tmp_path)
    assert row(written.splitlines(), trial.cell) == ["97.00", "1 of 1", "2", "30", "1 min 30 s"]
    assert "| validation, % |" in written
    assert "12.34" not in written
    assert "97.00 on validation images" in "\n".join(in_short(tuning.TABLE, results_of(tuning.TABLE, tmp_path)))
    draw_all([tuning.TABLE], tmp_path)
    picture = (tmp_path / "tuning.svg").read_text()
    assert "validation accuracy, %" in picture
    assert "test accuracy" not in picture
    for cell in tuning.TABLE.cells:
        assert settings_of_cell(cell)["data"]["validation_size"] == 5000


@pytest.mark.parametrize("experiment", mnist_epsilon2.BEST)
def test_our_settings_are_those_of_the_best_trial(experiment):
    trials = [run for run in tuning.TABLE.runs() if run.cell.experiment == experiment and run in COMMITTED]
    accuracies = {run.cell: read_result(result_file(RESULTS, run))["validation_accuracy"] for run in trials}
    best = max(accuracies, key=accuracies.__getitem__)
    chosen = settings_of(Run("a table", replace(best, overrides=(tuning.HELD_OUT,)), 0))
    assert settings_of_cell(best) == chosen, f"the best trial is {best.name}"


def test_a_figure_stands_beside_its_numbers(tmp_path):
    assert page(tmp_path).count("Not run.") == 3
    shutil.copytree(RESULTS / "figures", tmp_path / "figures")
    assert "Not run." not in page(tmp_path)
    (tmp_path / "figures" / "stable_rank_mnist.svg").unlink()
    path = tmp_path / "figures" / "measured_mnist.json"
    measured = json.loads(path.read_text())
    measured["steps"]["0"]["bases"]["random"]["random"]["750"]["error_of_mean"]["all"] = 0.54321
    path.write_text(json.dumps(measured))
    written = page(tmp_path)
    assert written.count("Not run.") == 1
    assert written.index("![Projection error against k: MNIST]") < written.index("| 0.543 |")
    assert "![Stable rank" not in written


def test_results_of_something_else_are_not_on_the_page(tmp_path):
    (run,) = table1.TABLE.runs([SVHN_GEP.name])
    empty = page(tmp_path)
    for wrong in ({"extra_overrides": ["trainer.max_steps=2"]}, {"overrides": ["data.extra=false"]}, {"seed": 5}):
        write_result(result_file(tmp_path, run), result(run, **wrong))
        assert page(tmp_path) == empty
    write_result(result_file(tmp_path, run), result(run))
    assert page(tmp_path) != empty
    assert not counts(result(run), replace(run, cell=replace(run.cell, overrides=("mechanism.k=7",))))


def test_the_committed_page_is_that_of_the_committed_results(tmp_path):
    written = (RESULTS / PAGE).read_text()
    assert page() == written, "python -m recipes.results --tables-only writes it anew"
    assert overview(README.read_text(), TABLES, FIGURES) == README.read_text(), "and this, too"
    for link in re.findall(r"\]\(([^)#]+)\)", written):
        assert (RESULTS / link).is_file(), link
    shutil.copytree(RESULTS, tmp_path / "results")
    (run,) = table1.TABLE.runs([SVHN_GEP.name])
    write_result(result_file(tmp_path / "results", run), result(run, accuracy=0.12345))
    assert page(tmp_path / "results") != written, "another result is another page"


def test_a_committed_result_is_of_its_cells_settings_and_names_no_machine():
    files = {path.name for path in (RESULTS / "runs").glob("*.json")}
    assert files == {result_file(RESULTS, run).name for run in COMMITTED}, "a result that belongs to no cell"
    for run in COMMITTED:
        found = read_result(result_file(RESULTS, run))
        assert counts(found, run), run.name
        settings = {**settings_of_cell(run.cell), "seed": run.seed}
        assert found["config"] == settings, f"{run.name}: its settings have changed; run it again or delete it"
        assert found["private"], run.name
        assert not re.search(r'"(~|\.{0,2})/|https?:', json.dumps(found)), run.name


def test_the_list_of_recipes_has_what_came_out_and_how_long_it_took(tmp_path):
    nothing = overview(README.read_text(), TABLES, FIGURES, tmp_path)
    assert nothing.count("| 0 of ") == len(TABLES)
    for run, accuracy in zip(table1.TABLE.runs([MNIST_GEP.name]), (0.964, 0.966, 0.968), strict=True):
        write_result(result_file(tmp_path, run), result(run, accuracy))
    (over_k,) = next(table for table in TABLES if table.name == "accuracy_against_k").runs(["cifar10_gep_k500"])
    write_result(result_file(tmp_path, over_k), result(over_k))
    (tmp_path / "figures").mkdir()
    figures = json.loads((RESULTS / "figures" / "measured_mnist.json").read_text())
    bases = [basis for step in figures["steps"].values() for basis in step["bases"].values()]
    for basis in bases:
        basis["seconds"] = 25.0 / len(bases)
    figures["training"]["seconds"] = 100.0
    (tmp_path / "figures" / "measured_mnist.json").write_text(json.dumps(figures))
    for name in FIGURES:
        (tmp_path / "figures" / f"{name}_mnist.svg").touch()
    written = overview(nothing, TABLES, FIGURES, tmp_path)
    assert "| GEP: MNIST, ε = 2: 96.60 ± 0.20. [Table 1" in written
    assert "| 3 of 37 | 4 min 30 s |" in written
    assert "| GEP: CIFAR-10, ε = 8, k = 500: 95.00. [Accuracy" in written
    assert written.count("| 2 min 5 s |") == written.count("| `table1/mnist_gep_eps8` |") == len(FIGURES)
    assert "| MNIST at ε = 5, step 0: GP: clipped gradient 0.63 against noise of 1.6; step 120: " in written
    assert "MNIST at step 120, 4.9 for gradients and 11.1 for residuals" in written
    assert "MNIST with k = 500: ImageNet, random labels 0.535 at step 0, 0.391 at step 60, 0.307 at" in written
    assert overview(written, TABLES, FIGURES) == README.read_text()


def test_the_links_of_the_readme_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)", README.read_text()):
        assert (README.parent / link).exists(), link
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in page().splitlines()
        if line.startswith("##")
    }
    assert set(re.findall(r"results/README\.md#([^)]+)\)", README.read_text())) <= headings


def test_a_result_tells_the_code_that_the_run_began_with(tmp_path):
    now = made_with(tmp_path)
    assert now["torch"] == torch.__version__.split("+")[0]
    (tmp_path / "checkpoints").mkdir()
    began = {**now, "git_revision": "0" * 40, "git_dirty": False, "device": "cpu"}
    (tmp_path / "checkpoints" / CARD_FILE).write_text(json.dumps({"software": began}))
    assert made_with(tmp_path) == {**now, "git_revision": "0" * 40, "git_dirty": False}


def test_a_long_curve_keeps_its_ends():
    points = [[step, step / 2] for step in range(1000)]
    kept = thinned(points)
    assert (len(kept), kept[0], kept[-1]) == (MOST_POINTS, points[0], points[-1])
    assert thinned(points[:40]) == points[:40]


def test_a_point_of_a_curve_is_one_line_of_the_file(tmp_path):
    (run,) = table1.TABLE.runs([SVHN_GEP.name])
    write_result(tmp_path / "r.json", result(run, overrides=["a", "b"]))
    text = (tmp_path / "r.json").read_text()
    assert "[30, 0.95]" in text
    assert json.loads(text) == result(run, overrides=["a", "b"])


@pytest.mark.parametrize("table", TABLES, ids=[table.name for table in TABLES])
def test_no_table_has_a_cell_that_cannot_be_composed(table):
    for cell in (cell for cell in table.cells if cell.overrides):
        settings = settings_of_cell(cell)
        assert settings["seed"] == 0
        assert settings["threads"] == 1


def test_the_noise_of_the_first_epochs_is_what_epsilon_8_needs_over_all_of_them():
    whole = settings_of_cell(next(cell for cell in table1.TABLE.cells if cell.name == "cifar10_gp_eps8"))
    epochs, batch = whole["trainer"]["max_epochs"], whole["data"]["batch_size"]
    event = SampledGaussian(batch / 50_000, first_epochs.NOISE)
    assert 7.99 < epsilon([(event, epochs * 50_000 // batch)], whole["privacy"]["delta"]) <= 8
