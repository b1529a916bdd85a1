import json
import math

import pytest

from lightning_gep.reporting.accuracy import against_epsilon, against_k
from lightning_gep.reporting.curves import DIAGNOSTICS, MAX_NAMED_RUNS, TRAINING, over_steps
from lightning_gep.reporting.figures import sections
from lightning_gep.reporting.groups import Settings
from lightning_gep.reporting.published import EPSILONS, RESULTS
from lightning_gep.reporting.runs import Run, load
from tests.synthetic_runs import STEPS, write_run, write_sweep


def run(accuracy=0.9, epsilon=2.0, mechanism="gep", k=100, **more):
    settings = {"epsilon": epsilon, "target_epsilon": epsilon, "private": True, **more}
    name = f"{mechanism} {k} {epsilon} {accuracy}"
    return Run(name, "finished", name, mechanism=mechanism, k=k, metrics={"test/accuracy": accuracy}, **settings)


def plot_of(runs, data=""):
    return against_epsilon(runs, Settings(runs), data)


def means(plot):
    return [trace for trace in plot.traces if "error_y" in trace or trace["mode"] == "lines+markers"]


def test_means_and_deviations_by_hand():
    runs = [run(a, 2.0) for a in (0.80, 0.82, 0.84)] + [run(a, 8.0) for a in (0.90, 0.93)]
    (mean,) = plot_of(runs).traces
    assert mean["x"] == [2.0, 8.0]
    assert mean["y"] == [82.0, 91.5]
    assert mean["error_y"]["array"] == [2.0, pytest.approx(2.1213, abs=1e-4)]
    assert plot_of(runs).numbers[0] == "GEP\nε = 2: 82.00 ± 2.00 %\n3 runs, largest ε spent 2"


@pytest.mark.parametrize("data", ["MNIST", "SVHN", "CIFAR-10"])
def test_the_papers_curves_stand_at_the_claimed_epsilon_and_at_the_true_one(data):
    traces = {trace["legendgroup"]: trace for trace in plot_of([run()], data).traces}
    assert {"paper-gep", "paper-bgep", "paper-gp", "paper-pate"} < set(traces)
    for kind in ("gep", "bgep", "gp"):
        claimed, true = traces[f"paper-{kind}"], traces[f"pld-{kind}"]
        assert (claimed["x"], true["x"]) == (list(EPSILONS), list(RESULTS[data].by_pld[kind]))
        assert true["y"] == claimed["y"] == list(RESULTS[data].accuracies[kind])
    assert "pld-pate" not in traces, "its ε depends on the data"


def test_the_page_says_that_the_papers_epsilon_was_claimed():
    notes = " ".join(plot_of([run()], "SVHN").notes)
    assert "claimed" in notes
    assert "GEP 2 → 3.06, GEP 5 → 10.55, GEP 8 → 18.44" in notes
    numbers = plot_of([run()], "SVHN").numbers
    assert "GEP, paper, ε by PLD\nε by PLD = 18.44: 95.1 %" in numbers
    assert "GP, paper, claimed ε\nclaimed ε = 8: 91.6 %" in numbers


def test_a_run_without_noise_is_a_level_line_and_marked():
    runs = [run(0.9, 2.0), run(0.92, 4.0), run(0.97, math.inf, private=False, target_epsilon=None)]
    plot = plot_of(runs)
    level = plot.traces[-1]
    assert level["y"] == [97.0, 97.0]
    assert level["x"][0] < 2 < 4 < level["x"][1]
    assert level["line"]["dash"] == "dash"
    assert plot.legend[-1].label == "GEP, not private"


def test_accuracy_against_k():
    runs = [run(0.8 + k / 1000 + s / 100, 2.0, k=k) for k in (50, 100) for s in (0, 2)] + [run(0.5, 2.0, "gp", None)]
    plot = against_k(runs, Settings(runs))
    (mean,) = means(plot)
    assert mean["x"] == [50.0, 100.0]
    assert mean["y"] == [86.0, 91.0]
    assert plot.numbers[0] == "GEP, ε = 2\nk = 50: 86.00 ± 1.41 %\n2 runs, largest ε spent 2"
    assert against_k(runs[:2], Settings(runs[:2])) is None


def test_text_from_disk_is_no_markup_in_plotly():
    runs = [run(0.9, e, "<b>x</b>", k=None) for e in (2.0, 4.0)]
    assert "<b>" not in json.dumps(plot_of(runs).traces)
    assert "&lt;b&gt;" in json.dumps(plot_of(runs).traces)


def test_few_runs_are_named_and_of_many_those_with_the_same_settings_look_the_same(tmp_path):
    write_sweep(tmp_path, epsilons=(2.0, 8.0))
    runs = load(tmp_path).runs
    few, many = (over_steps(TRAINING[1], found, Settings(found)) for found in (runs[:MAX_NAMED_RUNS], runs))
    assert [entry.label for entry in few.legend] == [run.job for run in runs[:MAX_NAMED_RUNS]]
    assert [entry.label for entry in many.legend] == [f"{name}, ε = {e}" for name in ("GEP", "GP") for e in (2, 8)]
    assert [len(plot.traces) for plot in (few, many)] == [MAX_NAMED_RUNS, len(runs)]
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in many.traces}) == 4
    assert few.traces[0]["x"][-1] == STEPS - 1
    assert few.traces[0]["y"][-1] == pytest.approx(runs[0].epsilon, rel=1e-4)


def test_what_is_not_private_stands_apart(tmp_path):
    write_sweep(tmp_path, nonprivate=True)
    found = {section.key: section for section in sections(load(tmp_path))}
    assert not found["nonprivate"].private
    assert [plot.key for plot in found["nonprivate"].plots][:2] == ["projection-error", "noise-to-signal"]
    assert all(quantity.logged.startswith("nonprivate/") for quantity in DIAGNOSTICS)
    elsewhere = [plot.key for key, section in found.items() if key != "nonprivate" for plot in section.plots]
    assert elsewhere == ["accuracy-epsilon", "learning", "epsilon-steps"]


def test_every_plot_has_words_numbers_and_finite_values(tmp_path):
    write_sweep(tmp_path, mechanisms=("gep", "bgep", "gp"), ks=(50, 100), nonprivate=True)
    write_run(tmp_path / "without-noise", epsilon=math.inf, private=False)
    plots = [plot for section in sections(load(tmp_path)) for plot in section.plots]
    assert len(plots) == 8
    for plot in plots:
        assert plot.summary.endswith(".")
        assert plot.numbers
        json.dumps([plot.traces, plot.layout], allow_nan=False)
