"""All records of a fit are differentiated in chunks of one size, so that rounding does not depend on the others."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients.batches import take
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.strategy.step import equal_chunks
from tests.gradients.test_backends import bound, every_backend
from tests.gradients_zoo import Classifier as Zoo
from tests.gradients_zoo import batch_of, loss_of
from tests.strategy.test_shared_draws import step_gradients
from tests.toys import Classifier, records


@every_backend
def test_the_gradient_of_a_record_is_the_same_however_many_others_there_are(backend, monkeypatch):
    """In other sizes products of matrices round differently; at a tie of two logits that moved all of a gradient."""
    net = nn.Linear(784, 3)
    x = torch.randn(40, 784, generator=torch.Generator().manual_seed(0)) * 1e7
    batch = (x, torch.arange(40) % 3)
    used = backend(net, lambda batch: F.cross_entropy(net(batch[0]), batch[1]), ParameterGroups.from_module(net))
    sizes, rows_of = [], used.rows
    monkeypatch.setattr(used, "rows", lambda batch, out: sizes.append(len(out)) or rows_of(batch, out))
    found = [used(take(batch, slice(0, drawn)), chunk_size=16) for drawn in (1, 15, 16, 17, 33)]
    assert [len(rows) for rows in found] == [1, 15, 16, 17, 33]
    assert backend is LoopGradients or set(sizes) == {16}
    for rows in found:
        assert torch.equal(rows, found[-1][: len(rows)])
    shifted = used(take(batch, slice(5, 38)), chunk_size=16)
    assert torch.equal(shifted[:-5], found[-1][5:])


def test_all_private_records_of_a_fit_are_differentiated_in_one_size(monkeypatch):
    gradients, sizes = step_gradients(Classifier(), expected_records=30), []
    rows_of = gradients.backend.rows
    monkeypatch.setattr(gradients.backend, "rows", lambda batch, out: sizes.append(len(out)) or rows_of(batch, out))
    for drawn in (1, 16, 45):
        assert sum(map(len, gradients.of_private(records(drawn).tensors))) == drawn
    assert set(sizes) == {gradients.chunk}


def test_chunks_are_as_large_as_is_expected_and_fits():
    expected_and_most = [(1000, 256), (4000, 250), (12, 512), (12, 5)]
    assert [equal_chunks(expected, most) for expected, most in expected_and_most] == [129, 250, 16, 5]


@every_backend
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunks_give_the_gradients_of_the_whole_and_the_loss_sees_no_more_at_once(backend, chunk):
    module, batch, seen = Zoo(), batch_of(10), []
    loss, groups = loss_of(module), ParameterGroups.from_module(module)
    in_chunks = backend(module, lambda batch: seen.append(len(batch[0])) or loss(batch), groups)
    in_chunks.largest_chunk = chunk
    torch.testing.assert_close(in_chunks(batch), bound(backend, module)(batch))
    assert len(seen) == (10 if backend is LoopGradients else -(-10 // chunk))
    assert max(seen) <= chunk
    assert in_chunks(batch_of(0)).shape == (0, groups.num_parameters)
