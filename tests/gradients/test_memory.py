"""How many records fit in memory, and memory that stays with the process."""

import ctypes
import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import memory
from lightning_gep.gradients.memory import (
    SET_BY_USER,
    check_rows_fit,
    free_memory,
    keep_freed_memory,
    kept_for_backward,
    largest_chunk,
    microbatch_for,
)
from lightning_gep.strategy import fit as fit_module
from tests.toys import Classifier, loader, strategy, trainer

CPU = torch.device("cpu")


def test_what_autograd_keeps_is_counted_without_the_parameters():
    layers = nn.Sequential(nn.Linear(100, 50, bias=False), nn.Linear(50, 20, bias=False))
    inputs = torch.randn(8, 100)
    # The input of each layer for the gradient of its weight, and the output for that of its square.
    assert kept_for_backward(layers, lambda x: layers(x).square().sum(), inputs) == 4 * 8 * (100 + 50 + 20)


def test_large_activations_mean_smaller_chunks():
    module, batch = nn.Linear(1, 1), torch.randn(4, 1)
    assert largest_chunk(module, lambda x: module(x).expand(-1, 10**6).sin().sin().sum(), batch, 10) < 40
    assert largest_chunk(module, lambda x: module(x).sin().sum(), batch, 10) == 512


def test_large_models_and_little_memory_mean_small_microbatches(monkeypatch):
    assert 10**8 < free_memory(CPU) <= 2**40
    monkeypatch.setattr(memory, "free_memory", lambda device: 10**10)
    assert [microbatch_for(parameters, CPU) for parameters in (1000, 269_722, 10**9)] == [512, 92, 1]
    monkeypatch.setattr(memory, "free_memory", lambda device: 8 * 10**7)
    assert microbatch_for(269_722, CPU) == 9


@pytest.mark.skipif(not hasattr(os, "confstr") or "glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc")
def test_freed_memory_is_kept_unless_the_user_has_decided(monkeypatch):
    for name in SET_BY_USER:
        monkeypatch.delenv(name, raising=False)
    asked = []
    library = SimpleNamespace(mallopt=lambda *parameters: asked.append(parameters) or 1)
    assert ctypes.CDLL(None).mallopt(-1, 2**30) == 1, "glibc takes it"
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    assert keep_freed_memory(CPU)
    assert asked == [(-1, 2**30), (-3, 2**30)]
    assert not keep_freed_memory(torch.device("meta")), "memory of other devices is left to torch"
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    assert not keep_freed_memory(CPU)
    assert len(asked) == 2


def test_a_fit_keeps_freed_memory(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(fit_module, "keep_freed_memory", asked.append)
    trainer(tmp_path, strategy(mechanism="gp"), max_steps=1).fit(Classifier(), loader())
    assert asked == [CPU]


def test_a_basis_that_does_not_fit_is_refused_before_training(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    used = strategy(k=40)
    with pytest.raises(
        ConfigurationError, match=r"k=40 vectors takes .* GB, but cpu has 1e-06 GB free. Lower k"
    ) as raised:
        trainer(tmp_path, used).fit(Classifier(), loader())
    assert raised.value.setting == "k"
    assert used.privacy is None


def test_gradients_that_do_not_fit_are_refused_with_the_setting_to_change(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 4 * 10**6)
    check_rows_fit(10, 10**5, CPU)
    with pytest.raises(ConfigurationError, match=r"11 records .* 0.0044 GB, but cpu has 0.004 GB") as refused:
        check_rows_fit(11, 10**5, CPU)
    assert refused.value.setting == "microbatch_size"
