"""Noise against signal, told from public gradients: the noise is that of real steps, and the order that of theory."""

import math

import pytest
import torch
from torch import nn

from lightning_gep.algorithm.comparison import compare_mechanisms, noise_energy
from lightning_gep.algorithm.gep import gradient_embedding_perturbation
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.noise import SeededNoise
from lightning_gep.algorithm.spectral import TrackedSpectrum
from lightning_gep.algorithm.subspace import NoSubspace
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.privacy.release import make_mechanism

GROUPS = ParameterGroups.from_module(nn.Sequential(nn.Linear(20, 15), nn.Linear(15, 8)))
P, K = GROUPS.num_parameters, 20


def gradients(count, decay, seed=0):
    """Rows with a mean, whose energy falls off by `decay` orders of magnitude from direction to direction."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(P, generator=torch.Generator().manual_seed(9))
    scales = torch.logspace(0, -decay, P, dtype=torch.float64)[order]
    rows = torch.randn(count, P, generator=generator, dtype=torch.float64) + 0.5
    return rows * scales


@pytest.mark.parametrize("name", ["gp", "gep", "bgep", "spectral"])
def test_the_energy_is_that_of_the_noise_of_real_steps(name):
    anchors = gradients(60, 2)
    sources = {
        "gp": NoSubspace(P, anchors),
        "spectral": TrackedSpectrum(GROUPS.shapes, num_anchors=60, decay=0.0),
    }
    source = sources.get(name) or TrackedSubspace(GROUPS.sizes, GROUPS.quotas(K), num_anchors=60, decay=0.0)
    release = make_mechanism(name).release(1.3, k=K, num_parameters=P)
    settings = {"subspace": source, "release": release, "expected_batch_size": 1, "step": 0, "charge": lambda: None}
    noises = map(SeededNoise, range(300))
    steps = [gradient_embedding_perturbation(lambda: [anchors], [], noise=noise, **settings)[0] for noise in noises]
    expected = noise_energy(source.current, release)
    assert float(torch.stack(steps).square().sum(1).mean()) == pytest.approx(expected, rel=0.1)


def levels(decay):
    found = compare_mechanisms(
        gradients(100, decay), gradients(100, decay, 1), GROUPS, k=K, noise_multiplier=1.0, batch_size=100
    )
    assert [level.noise_over_signal for level in found] == sorted(level.noise_over_signal for level in found)
    return {level.mechanism: level.noise_over_signal for level in found}


def test_a_steep_spectrum_favours_shaped_noise_and_a_flat_one_nothing():
    steep, flat = levels(3), levels(0)
    assert steep["spectral"] < 0.85 * steep["gp"]
    assert steep["gep"] < 0.95 * steep["gp"]
    assert flat["spectral"] == pytest.approx(flat["gp"], rel=0.15)
    assert flat["gep"] > 0.9 * flat["gp"]


def test_without_a_common_direction_there_is_no_signal():
    rows = torch.randn(50, P, dtype=torch.float64)
    found = compare_mechanisms(rows, rows - 2 * rows.mean(0), GROUPS, k=K, noise_multiplier=1.0, batch_size=10)
    assert all(level.noise_over_signal > 0 for level in found)
    assert not any(math.isnan(level.noise_over_signal) for level in found)
