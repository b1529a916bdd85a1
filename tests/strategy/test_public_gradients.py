import gc
import weakref

import pytest
import torch
from lightning.pytorch.plugins import Precision
from torch.utils.data import DataLoader, Dataset

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.strategy.public_data import PublicStream
from lightning_gep.strategy.public_gradients import PublicGradients
from lightning_gep.strategy.step import StepGradients
from tests.toys import CLASSES, FEATURES, Classifier


class Fresh(Dataset):
    """Records that are new at every look, as with random labels, and whose life can be followed."""

    def __init__(self):
        self.alive = weakref.WeakSet()

    def __len__(self):
        return 40

    def __getitem__(self, index):
        raise AssertionError("whole batches are read")

    def __getitems__(self, indices):
        x = torch.randn(len(indices), FEATURES)
        self.alive.add(x)
        return x, torch.randint(CLASSES, (len(indices),))


def anchors(stream, seed=None, sweeps=1):
    module = Classifier()
    groups = ParameterGroups.from_module(module)
    gradients = StepGradients(module, Precision(), groups, microbatch=5, expected_records=5, seed=seed)
    gradients.choose_backend((torch.randn(6, FEATURES), torch.randint(CLASSES, (6,))), "functional")
    return PublicGradients(gradients, stream, lambda batch: batch, num_anchors=5, sweeps=sweeps)


def public():
    data = Fresh()
    return data, PublicStream(DataLoader(data, batch_size=5, collate_fn=lambda batch: batch))


def test_anchors_that_are_seen_once_are_not_held():
    data, stream = public()
    most = 0
    for _ in anchors(stream)(40, 0)():
        gc.collect()
        most = max(most, len(data.alive))
    assert most <= 2, "of eight batches: the one in use, and the one before until the next is drawn"


@pytest.mark.parametrize(("seed", "sweeps"), [(None, 2), (0, 1)])
def test_anchors_that_are_seen_again_are_the_same(seed, sweeps):
    _, stream = public()
    sweep = anchors(stream, seed, sweeps)(40, 0)
    first, second = (torch.cat(list(sweep())) for _ in range(2))
    assert torch.equal(first, second)


def test_a_refresh_with_one_sweep_after_another_sees_other_records():
    _, stream = public()
    made = anchors(stream)
    first, second = (torch.cat(list(made(40, step)())) for step in range(2))
    assert not torch.equal(first, second)
