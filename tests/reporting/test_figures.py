import json
import math

import pytest

from lightning_gep.reporting.accuracy import accuracy_against, accuracy_plots
from lightning_gep.reporting.curves import DIAGNOSTICS, MAX_NAMED_RUNS, TRAINING, curve_sections, over_steps
from lightning_gep.reporting.groups import MAX_SERIES, by_settings, epsilon_of
from lightning_gep.reporting.runs import Run, load
from tests.synthetic_runs import STEPS, write_run, write_sweep


def run(accuracy=0.9, epsilon=2.0, mechanism="gep", k=100, **more):
    settings = {"epsilon": epsilon, "target_epsilon": epsilon, "private": True, **more}
    name = f"{mechanism} {k} {epsilon} {accuracy}"
    return Run(name, "finished", name, mechanism=mechanism, k=k, metrics={"test/accuracy": accuracy}, **settings)


def test_means_and_deviations_by_hand():
    runs = [run(a, 2.0) for a in (0.80, 0.82, 0.84)] + [run(a, 8.0) for a in (0.90, 0.93)]
    (plot,) = accuracy_plots(runs)
    (mean,) = plot.traces
    assert mean["x"] == [2.0, 8.0]
    assert mean["y"] == [82.0, 91.5]
    assert mean["error_y"]["array"] == [2.0, pytest.approx(2.1213, abs=1e-4)]
    assert plot.numbers[0] == "GEP\nε = 2: 82.00 ± 2.00 %\n3 runs, largest ε spent 2"


def test_a_run_without_noise_is_a_level_line_and_marked():
    runs = [run(0.9, 2.0), run(0.92, 4.0), run(0.97, math.inf, private=False, target_epsilon=None)]
    level = accuracy_plots(runs)[0].traces[-1]
    assert level["y"] == [97.0, 97.0]
    assert level["x"][0] < 2 < 4 < level["x"][1]
    assert level["line"]["dash"] == "dash"
    assert level["name"] == "GEP (not private)"


def test_accuracy_against_k():
    runs = [run(0.8 + k / 1000 + s / 100, 2.0, k=k) for k in (50, 100) for s in (0, 2)] + [run(0.5, 2.0, "gp", None)]
    plot = accuracy_against("k", runs, key="k")
    (mean,) = plot.traces
    assert mean["x"] == [50.0, 100.0]
    assert mean["y"] == [86.0, 91.0]
    assert plot.numbers[0] == "GEP\nk = 50: 86.00 ± 1.41 %\n2 runs, largest ε spent 2"
    assert accuracy_against("k", runs[:2], key="k") is None


def test_text_from_disk_is_no_markup_in_plotly():
    (plot,) = accuracy_plots([run(0.9, e, "<b>x</b>", k=None) for e in (2.0, 4.0)])
    assert "<b>" not in json.dumps(plot.traces)
    assert plot.traces[0]["name"] == "&lt;b&gt;x&lt;/b&gt;"


def test_groups_are_named_by_what_differs_but_the_seed():
    runs = [
        run(k=k, overrides={"optimizer.lr": lr, "seed": f"{k}", "logger": lr})
        for k, lr in ((100, "0.1"), (50, "0.1"), (50, "0.2"))
    ]
    names = ["k = 100, optimizer.lr = 0.1", "k = 50, optimizer.lr = 0.1", "k = 50, optimizer.lr = 0.2"]
    assert list(by_settings(runs)) == [f"GEP, {name}" for name in names]
    assert list(by_settings(runs, "k")) == ["GEP, optimizer.lr = 0.1", "GEP, optimizer.lr = 0.2"]
    assert list(by_settings([run(), run("gp", 2.0), run(0.8)])) == ["GEP"]


def test_too_many_groups_are_pooled_and_say_so():
    runs = [run(k=k) for k in range(1, MAX_SERIES + 2)]
    assert [len(found) for found in by_settings(runs[1:]).values()] == [1] * MAX_SERIES
    assert by_settings(runs) == {"GEP, several settings": runs}


def test_the_epsilon_of_a_run_is_its_target_and_infinite_without_noise():
    assert epsilon_of(run(epsilon=1.98, target_epsilon=2.0)) == 2.0
    assert epsilon_of(run(epsilon=1.9801, target_epsilon=None)) == 1.981
    assert epsilon_of(run(epsilon=math.inf, target_epsilon=2.0)) == math.inf
    assert epsilon_of(run(epsilon=None)) is None


def test_few_runs_are_named_and_of_many_those_with_the_same_settings_look_the_same(tmp_path):
    write_sweep(tmp_path, mechanisms=("gep", "bgep"), epsilons=(2.0, 8.0))
    runs = load(tmp_path).runs
    few, many = (over_steps(TRAINING[1], found) for found in (runs[:MAX_NAMED_RUNS], runs))
    assert [trace["name"] for trace in few.traces] == [run.job for run in runs[:MAX_NAMED_RUNS]]
    named = [trace["name"] for trace in many.traces if trace["showlegend"]]
    assert named == [f"{name}, ε = {e}" for name in ("GEP", "B-GEP") for e in (2, 8)]
    assert [len(plot.traces) for plot in (few, many)] == [MAX_NAMED_RUNS, len(runs)]
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in many.traces}) == 4
    assert few.traces[0]["x"][-1] == STEPS - 1
    assert few.traces[0]["y"][-1] == pytest.approx(runs[0].epsilon, rel=1e-4)


def test_what_is_not_private_stands_apart(tmp_path):
    write_sweep(tmp_path, nonprivate=True)
    training, nonprivate = curve_sections(load(tmp_path).runs)
    assert (training.private, nonprivate.private) == (True, False)
    assert [plot.key for plot in nonprivate.plots][:2] == ["projection-error", "noise-to-signal"]
    assert all(quantity.logged.startswith("nonprivate/") for quantity in DIAGNOSTICS)
    assert [plot.key for plot in training.plots] == ["learning", "epsilon-steps"]


def test_every_plot_has_words_numbers_and_finite_values(tmp_path):
    write_sweep(tmp_path, mechanisms=("gep", "bgep", "gp"), ks=(50, 100), nonprivate=True)
    write_run(tmp_path / "without-noise", epsilon=math.inf, private=False)
    runs = load(tmp_path).runs
    plots = [*accuracy_plots(runs), *(plot for section in curve_sections(runs) for plot in section.plots)]
    assert len(plots) == 8
    for plot in plots:
        assert plot.summary.endswith(".")
        assert plot.numbers
        json.dumps([plot.traces, plot.layout], allow_nan=False)
