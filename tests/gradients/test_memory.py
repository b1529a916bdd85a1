"""How many records fit in memory."""

import torch
from torch import nn

from lightning_gep.gradients import memory
from lightning_gep.gradients.memory import free_memory, kept_for_backward, largest_chunk, microbatch_for

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
    monkeypatch.setattr(memory, "free_memory", lambda device: 10**10)
    assert microbatch_for(1000, CPU) == 512
    assert microbatch_for(269_722, CPU) == 92
    assert microbatch_for(10**9, CPU) == 1
    monkeypatch.setattr(memory, "free_memory", lambda device: 8 * 10**7)
    assert microbatch_for(269_722, CPU) == 9


def test_free_memory_is_less_than_there_is():
    assert 10**8 < free_memory(CPU) <= 2**40
