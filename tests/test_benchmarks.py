"""The benchmark's own parts: what it compares with must be right, and its arithmetic too."""

import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks import run
from benchmarks.measure import Clock, memory_mb
from benchmarks.paper_reference import PaperStep, gram_schmidt
from benchmarks.run import CONTENDERS, in_a_process
from benchmarks.scaling import points
from benchmarks.settings import SETTINGS
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients.functional import FunctionalGradients
from tests.toys import fresh_memory


def test_gram_schmidt_makes_rows_orthonormal_in_the_same_span():
    rows = torch.randn(8, 30, dtype=torch.float64)
    basis = gram_schmidt(rows)
    assert torch.allclose(basis @ basis.T, torch.eye(8, dtype=torch.float64), atol=1e-10)
    assert torch.allclose(rows @ basis.T @ basis, rows, atol=1e-10)


def test_the_plain_algorithm_without_noise_and_clipping_is_the_mean_gradient():
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    groups = ParameterGroups.from_module(network)

    def loss(batch):
        return nn.functional.cross_entropy(network(batch[0]), batch[1])

    rows = FunctionalGradients(network, loss, groups)
    step = PaperStep(lambda x, y: rows((x, y)), groups, k=9, microbatch=7, clips=(1e9, 1e9), noise=0.0)
    batch, anchors = ((torch.randn(n, 6), torch.randint(3, (n,))) for n in (20, 30))
    loss(batch).backward()
    expected = groups.flatten({name: p.grad for name, p in network.named_parameters()})
    assert torch.allclose(step(anchors, batch), expected, atol=1e-5)


def test_the_clock_leaves_warm_up_out_and_sees_memory():
    clock = Clock(skip=2)
    clock.start()
    for _ in range(5):
        held = fresh_memory(64)
        clock.tick()
    assert len(clock.measured.seconds) == 3
    assert clock.measured.peak_mb - clock.measured.baseline_mb > 50
    assert memory_mb("VmHWM") >= memory_mb("VmRSS") > held.nbytes / 2**20


@pytest.mark.slow
def test_a_contender_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"(?s)gep at linear_probe, small failed.*k=99999 basis vectors"):
        in_a_process("gep", SETTINGS["linear_probe, small"], 1, k=99999)


def test_every_point_of_the_scaling_curves_can_be_measured():
    for curves in points().values():
        for curve in curves.values():
            for _, (contender, setting, changes) in curve:
                changed = replace(SETTINGS[setting], **changes)
                assert contender in CONTENDERS
                assert changed.k <= changed.groups().num_parameters
                assert changed.m >= changed.k or contender != "paper"


@pytest.mark.slow
def test_the_quick_mode_measures_everyone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run", "--quick", "--output", str(tmp_path)])
    run.main()
    (setting,) = json.loads((tmp_path / "quick.json").read_text())["settings"].values()
    table = setting["contenders"]
    assert list(table) == list(run.CONTENDERS)
    for figures in table.values():
        assert figures["seconds"]["min"] > 0
        assert figures["peak_mb"]["min"] > 100
    gep, hooks = (table[name]["seconds"]["median"] for name in ("gep", "opacus_hooks"))
    text = (tmp_path / "quick.md").read_text()
    assert text.strip() in capsys.readouterr().out
    assert f"| ours: **GEP** | {gep:.2f} s [" in text
    assert f"GEP takes {gep / setting['limit_seconds']:.2f} times that" in text
    assert f"| ours: GEP | Opacus DP-SGD, hooks | {gep / hooks:.2f} |" in text


def test_some_contenders_can_be_measured_anew_and_the_others_keep_figures_and_date(tmp_path, monkeypatch):
    measured = []

    def in_no_time(contender, setting, steps):
        measured.append(contender)
        return {"seconds": [float(len(measured))] * steps, "baseline_mb": 1.0, "peak_mb": 2.0}

    monkeypatch.setattr(run, "in_a_process", in_no_time)
    monkeypatch.setattr(run, "matmul_speed", lambda setting: 1e9)
    command = ["run", "--quick", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    run.main()
    file = tmp_path / "quick.json"
    (before,) = json.loads(file.read_text())["settings"].values()
    file.write_text(re.sub(r"\d{4}-\d\d-\d\d", "2001-02-03", file.read_text()))
    measured.clear()
    monkeypatch.setattr(sys, "argv", [*command, "--contenders", "gp", "spectral"])
    run.main()
    assert measured == ["plain", "gp", "spectral"]
    (after,) = json.loads(file.read_text())["settings"].values()
    assert list(after["contenders"]) == list(before["contenders"])
    assert after["contenders"]["gep"] == {**before["contenders"]["gep"], "date": "2001-02-03"}
    assert after["contenders"]["gp"]["seconds"]["median"] == 2.0
    text = (tmp_path / "quick.md").read_text()
    (old,) = [line for line in text.splitlines() if line.startswith("| ours: **GEP** (2001-02-03) |")]
    assert " | – | " in old, "figures of different days are not compared"
    assert "| ours: GP |" in text
