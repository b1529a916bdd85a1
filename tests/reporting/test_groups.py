import math

from lightning_gep.reporting.groups import MAX_SERIES, Settings, epsilon_of
from lightning_gep.reporting.runs import Run


def run(mechanism="gep", k=100, overrides=None, **more):
    return Run("job", "finished", mechanism=mechanism, k=k, overrides=overrides or {}, **more)


def test_k_is_named_only_where_there_are_several():
    assert Settings([run(k=100), run("gp", None)]).name(run(k=100), "k") == "GEP"
    several = Settings([run(k=100), run(k=50), run("gp", None)])
    assert several.name(run(k=50), "k") == "GEP, k = 50"
    assert several.name(run("gp", None), "k") == "GP"


def test_other_settings_that_differ_are_named():
    runs = [run(overrides={"optimizer.lr": lr, "seed": lr, "logger": lr, "x": "1"}) for lr in ("0.1", "0.2")]
    settings = Settings(runs)
    assert settings.varying == ["optimizer.lr"]
    assert settings.name(runs[1], "others") == "GEP, optimizer.lr = 0.2"
    assert settings.name(runs[1]) == "GEP"


def test_too_many_groups_pool_the_last_parts_and_say_so():
    runs = [run(k=k, overrides={"optimizer.lr": f"{k % 7}"}) for k in range(1, MAX_SERIES + 2)]
    settings = Settings(runs)
    assert [len(members) for members in settings.groups(runs[1:], "k", "others")[0].values()] == [1] * MAX_SERIES
    (members,), (note,) = settings.groups(runs, "others", "k", most=2)[0].values(), settings.groups(runs, "k")[1]
    assert members == runs
    assert "runs that differ in k share one" in note


def test_the_epsilon_of_a_run_is_its_target_and_infinite_without_noise():
    assert epsilon_of(run(epsilon=1.98, target_epsilon=2.0)) == 2.0
    assert epsilon_of(run(epsilon=1.9801)) == 1.981
    assert epsilon_of(run(epsilon=math.inf, target_epsilon=2.0)) == math.inf
    assert epsilon_of(run()) is None
