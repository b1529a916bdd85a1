import runpy
from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.mark.slow
def test_the_tabular_recipe_trains_and_keeps_its_budget(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    accuracy, epsilon = runpy.run_path(str(RECIPES / "tabular.py"))["main"](max_epochs=5)
    assert accuracy > 0.75  # always saying "benign" gives 0.63
    assert 2.9 < epsilon <= 3.0
    assert "at ε = " in capsys.readouterr().out
