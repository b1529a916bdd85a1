"""The benchmark's own parts: what it compares with must be right, and its arithmetic too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.measure import Clock, laps, memory_mb
from benchmarks.paper_reference import PaperStep, gram_schmidt, power_iteration
from benchmarks.run import CONTENDERS, summary
from benchmarks.settings import FULL, QUICK, SETTINGS
from benchmarks.tables import markdown
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.groups import ParameterGroups

ROOT = Path(__file__).resolve().parent.parent


def test_gram_schmidt_makes_rows_orthonormal_in_the_same_span():
    rows = torch.randn(8, 30, dtype=torch.float64)
    basis = gram_schmidt(rows)
    assert torch.allclose(basis @ basis.T, torch.eye(8, dtype=torch.float64), atol=1e-10)
    assert torch.allclose(rows @ basis.T @ basis, rows, atol=1e-10)


def test_one_power_iteration_finds_most_of_a_dominant_subspace():
    directions = gram_schmidt(torch.randn(3, 50))
    anchors = 10 * torch.randn(200, 3) @ directions + 0.1 * torch.randn(200, 50)
    basis = power_iteration(anchors, 3)
    assert float((directions @ basis.T).square().sum()) == pytest.approx(3.0, rel=1e-3)


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
        held = torch.ones(2**24)
        clock.tick()
    assert len(clock.measured.seconds) == 3
    assert clock.measured.peak_mb - clock.measured.baseline_mb > 50
    assert memory_mb("VmHWM") >= memory_mb("VmRSS") > held.nbytes / 2**20


def test_a_step_of_a_refreshed_basis_is_the_mean_of_a_whole_lap():
    assert list(laps([1.0, 1.0, 4.0, 1.0, 1.0, 4.0, 9.0], 3)) == [2.0, 2.0]


def test_the_settings_are_the_papers():
    resnet = SETTINGS["resnet20"]
    assert (resnet.n, resnet.m, resnet.k) == (1000, 2000, 1000)
    assert resnet.basis_entries == pytest.approx(124.6e6, rel=0.01)
    assert len(SETTINGS) == len(FULL) + len(QUICK)


def test_a_contender_is_measured_in_a_process_of_its_own():
    command = [sys.executable, "-m", "benchmarks.one", "paper", "linear_probe, small", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert len(measured["seconds"]) == 2
    assert measured["peak_mb"] > measured["baseline_mb"] > 100


def test_the_table_has_every_contender_and_the_ratios():
    runs = {
        name: [{"seconds": [float(i + 1)], "peak_mb": 100.0, "baseline_mb": 90.0}] for i, name in enumerate(CONTENDERS)
    }
    table = {name: summary(name, figures) for name, figures in runs.items()}
    setting = {
        "n": 1,
        "m": 2,
        "k": 3,
        "microbatch": 4,
        "matmul_gflops": 50.0,
        "limit_seconds": 3.0,
        "contenders": table,
    }
    machine = dict.fromkeys(("processor", "cores", "memory_gb", "torch", "lightning", "opacus"), "x")
    text = markdown({"date": "today", "threads": 2, "machine": machine, "settings": {"toy": setting}})
    assert "| ours: **GEP** | 6.00 s [6.00, 6.00] | 6.00 | 100 MB [100, 100] | 10 MB |" in text
    assert "GEP takes 2.00 times that" in text
    assert "GP against them: 2.00" in text
