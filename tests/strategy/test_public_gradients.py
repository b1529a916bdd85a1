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
    """Records that are new at every look, as with random labels."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.randn(FEATURES), torch.randint(CLASSES, ())


def anchors(stream, seed=None, sweeps=1):
    module = Classifier()
    groups = ParameterGroups.from_module(module)
    gradients = StepGradients(module, Precision(), groups, microbatch=5, expected_records=5, seed=seed)
    gradients.choose_backend((torch.randn(6, FEATURES), torch.randint(CLASSES, (6,))), "functional")
    return PublicGradients(gradients, stream, num_anchors=5, sweeps=sweeps)


def public():
    return PublicStream(DataLoader(Fresh(), batch_size=5))


@pytest.mark.parametrize(("seed", "sweeps"), [(None, 2), (0, 1)])
def test_anchors_that_are_seen_again_are_the_same(seed, sweeps):
    made = anchors(public(), seed, sweeps)
    sweep = made(40, 0)
    first, second = (torch.cat(list(sweep())) for _ in range(2))
    assert torch.equal(first, second)


def test_a_refresh_with_one_sweep_after_another_sees_other_records():
    made = anchors(public())
    first, second = (torch.cat(list(made(40, step)())) for step in range(2))
    assert not torch.equal(first, second)
