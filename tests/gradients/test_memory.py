"""How many records are differentiated together, and that it makes no difference to their gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients import choose_backend, memory
from lightning_gep.gradients.memory import free_memory, kept_for_backward, microbatch_for, records_at_once
from tests.gradients.test_backends import bound, every_backend
from tests.gradients_zoo import FEATURES, Classifier, loss_of

CPU = torch.device("cpu")


def batch_of(size):
    return torch.randn(size, FEATURES), torch.randint(3, (size,))


@every_backend
@pytest.mark.parametrize("at_once", [1, 3, 10, 11, 100])
def test_pieces_give_the_gradients_of_the_whole(backend, at_once):
    module, batch = Classifier(), batch_of(10)
    whole = bound(backend, module)(batch)
    in_pieces = bound(backend, module)
    in_pieces.records_at_once = at_once
    torch.testing.assert_close(in_pieces(batch), whole)
    assert in_pieces(batch_of(0)).shape == (0, whole.shape[1])


@every_backend
def test_the_loss_never_sees_more_records_than_are_differentiated_together(backend):
    module, seen = Classifier(), []
    loss = loss_of(module)

    def watched(batch):
        seen.append(len(batch[0]))
        return loss(batch)

    used = backend(module, watched, ParameterGroups.from_module(module))
    used.records_at_once = 4
    used(batch_of(10))
    calls = {"functional": 3, "hooks": 3, "loop": 10}[backend.name]
    assert len(seen) == calls
    assert max(seen) <= 4


def test_half_precision_gradients_are_widened_in_pieces_too():
    module = Classifier(nn.Linear(FEATURES, 3)).bfloat16()

    def loss(batch):
        return F.cross_entropy(module(batch[0].bfloat16()).float(), batch[1])

    used = choose_backend(module, loss, ParameterGroups.from_module(module), batch_of(8), "functional")
    batch = batch_of(9)
    whole = used(batch)
    used.records_at_once = 2
    assert used(batch).dtype == whole.dtype == torch.float32
    torch.testing.assert_close(used(batch), whole, rtol=0.02, atol=0.02)


def test_what_autograd_keeps_is_counted_without_the_parameters():
    layers = nn.Sequential(nn.Linear(100, 50, bias=False), nn.Linear(50, 20, bias=False))
    inputs = torch.randn(8, 100)
    # The input of each layer for the gradient of its weight, and the output for that of its square.
    assert kept_for_backward(lambda x: layers(x).square().sum(), inputs) == 4 * 8 * (100 + 50 + 20)


def test_large_activations_mean_fewer_records_at_once():
    def loss(batch):
        return batch.expand(-1, 10**6).sin().sin().sum()

    def small_loss(batch):
        return batch.sin().sum()

    batch = torch.randn(4, 1, requires_grad=True)
    assert records_at_once(loss, batch, 10, CPU) < 40
    assert records_at_once(small_loss, batch, 10, CPU) == 512


def test_large_models_and_little_memory_mean_small_microbatches(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 10**10)
    assert microbatch_for(1000, CPU) == 512
    assert microbatch_for(269_722, CPU) == 92
    assert microbatch_for(10**9, CPU) == 1
    monkeypatch.setattr(memory, "free_memory", lambda device: 8 * 10**7)
    assert microbatch_for(269_722, CPU) == 9


def test_free_memory_is_less_than_there_is():
    assert 10**8 < free_memory(CPU) <= 2**40


def test_a_chosen_backend_knows_how_many_records_to_take():
    module = Classifier()
    chosen = choose_backend(module, loss_of(module), ParameterGroups.from_module(module), batch_of(8))
    assert chosen.records_at_once == 512
