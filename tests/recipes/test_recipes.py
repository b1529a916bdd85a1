import runpy
from pathlib import Path

import pytest

from recipes.running.outcome import RESULTS, read_result, result_file
from recipes.running.settings import settings_of
from recipes.tables import LINEAR_PROBE, shaped

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.mark.slow
def test_the_tabular_recipe_trains_and_keeps_its_budget(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    accuracy, epsilon = runpy.run_path(str(RECIPES / "tabular.py"))["main"](max_epochs=5)
    assert accuracy > 0.75  # always saying "benign" gives 0.63
    assert 2.9 < epsilon <= 3.0
    assert "at ε = " in capsys.readouterr().out


@pytest.mark.parametrize("name", shaped.CHOSEN)
def test_learning_rates_are_those_with_the_best_validation_accuracy(name):
    runs = shaped.CIFAR10_TRIALS.runs([f"{name}_lr*"])
    results = {run.cell.name: read_result(result_file(RESULTS, run)) for run in runs}
    assert len(results) == len(shaped.RATES)
    best = max(results, key=lambda cell: results[cell]["validation_accuracy"])
    assert best == f"{name}_lr{shaped.CHOSEN[name]:g}"


def test_spectral_on_features_has_the_settings_with_the_best_validation_accuracy():
    runs = shaped.PROBE_TRIALS.runs(["spectral_*"])
    results = {run.cell.name: read_result(result_file(RESULTS, run)) for run in runs}
    assert len(results) == len(shaped.PROBE_RATES) * len(shaped.PROBE_THRESHOLDS)
    best = max(results, key=lambda cell: results[cell]["validation_accuracy"])
    used = settings_of(LINEAR_PROBE.runs(["spectral_eps0_5"])[0])
    assert best == shaped.probe_trial("spectral", used["optimizer"]["lr"], used["mechanism"]["clip_norm"])
