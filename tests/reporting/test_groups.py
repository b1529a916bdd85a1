import math

import pytest

from lightning_gep.reporting.groups import Settings, epsilon_of, mean_curve, varying
from lightning_gep.reporting.runs import Run


def run(mechanism="gep", k=100, overrides=None, **more):
    return Run("job", "finished", mechanism=mechanism, k=k, overrides=overrides or {}, **more)


def test_k_is_named_only_where_there_are_several():
    assert Settings([run(k=100), run("gp", None)]).name(run(k=100)) == "GEP"
    several = Settings([run(k=100), run(k=50), run("gp", None)])
    assert several.name(run(k=50)) == "GEP, k = 50"
    assert several.name(run("gp", None)) == "GP"


def test_other_settings_that_differ_are_named():
    runs = [run(overrides={"optimizer.lr": lr, "seed": lr, "logger": lr, "x": "1"}) for lr in ("0.1", "0.2")]
    assert varying(runs) == ["optimizer.lr"]
    assert Settings(runs).name(runs[1]) == "GEP, optimizer.lr = 0.2"
    assert Settings(runs).name(runs[1], others=False) == "GEP"


def test_the_epsilon_of_a_run_is_its_target_and_infinite_without_noise():
    assert epsilon_of(run(epsilon=1.98, target_epsilon=2.0)) == 2.0
    assert epsilon_of(run(epsilon=1.9801)) == 1.981
    assert epsilon_of(run(epsilon=math.inf, target_epsilon=2.0)) == math.inf
    assert epsilon_of(run()) is None


def test_mean_curves_do_not_jump_with_who_is_in_them():
    early = [(0.0, 1.0), (1.0, 2.0), (2.0, 4.0)]
    late = [(0.0, 3.0), (2.0, 6.0), (3.0, 9.0)]
    assert mean_curve([early, late]) == [
        (0.0, 2.0, pytest.approx(math.sqrt(2)), 2),
        (2.0, 5.0, pytest.approx(math.sqrt(2)), 2),
        (3.0, 9.0, None, 1),
    ]
    assert mean_curve([[], early])[-1] == (2.0, 4.0, None, 1)
    assert mean_curve([]) == []
