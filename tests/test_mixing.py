"""Records that are mixed on their way into a batch are found, whatever coin decides on it; others are left alone."""

import random

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset, default_collate

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.randomness import random_state_kept
from lightning_gep.mixing import mixes
from tests.toys import Classifier, loader, public_loader, records, strategy, trainer

INPUTS = torch.arange(24.0).reshape(8, 3)


def plain(positions):
    return {"x": INPUTS[positions], "names": [str(i) for i in positions], "scale": torch.tensor(2.0), "n": 4}


def augmented(positions):
    x = INPUTS[positions]
    return x * torch.rand(len(x), 1) + np.random.rand() + random.random()


def with_nothing_in_some_places(positions):
    x = INPUTS[positions]
    x[:, 0] = float("nan")
    return x


@pytest.mark.parametrize("make", [plain, augmented, with_nothing_in_some_places])
def test_what_happens_within_each_record_is_no_mixing(make):
    assert not mixes(make, 8)


def neighbours(x):
    return x + x.roll(1, 0)


def pairs(x):
    return x + x[torch.randperm(len(x))]


def now_and_then(throw, often):
    return lambda x: neighbours(x) if throw() < often else x


@pytest.mark.parametrize(
    "mix",
    [
        neighbours,
        pairs,
        lambda x: x - x.mean(0),
        lambda x: torch.where(torch.arange(len(x))[:, None] == 3, x.sum(0), x),
        lambda x: (x, x.mean()),
        lambda x: {"x": x, "largest": float(x.max())},
        lambda x: x[x.sum(1) > 20],
        now_and_then(lambda: torch.rand(1).item(), 0.4),
        now_and_then(lambda: torch.rand(1).item(), 1e-4),
        now_and_then(lambda: 1 - torch.rand(1).item(), 1e-4),
        now_and_then(np.random.rand, 0.4),
        now_and_then(random.random, 0.4),
    ],
)
def test_every_mixing_is_found_and_the_random_states_are_left_alone(mix):
    with random_state_kept():
        expected = (float(torch.rand(1)), np.random.rand(), random.random())
    assert mixes(lambda positions: mix(INPUTS[positions]), 8)
    assert (float(torch.rand(1)), np.random.rand(), random.random()) == expected


def collate_that_mixes(items):
    x, y = default_collate(items)
    return pairs(x), y


def collate_with_a_mean(items):
    x, y = default_collate(items)
    return x, y, x.mean()


class WithMean(Classifier):
    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0] - batch[2], batch[1]), batch_idx)


class MixesAfterTransfer(Classifier):
    """As usual: in training only."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return (pairs(batch[0]), batch[1]) if self.training and self.trainer.training else batch


class MixesBeforeTransfer(Classifier):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return neighbours(batch[0]), batch[1]


class Data(LightningDataModule):
    def train_dataloader(self):
        return loader()

    def aux_dataloader(self):
        return public_loader()


class DataThatMixes(Data):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return pairs(batch[0]), batch[1]


@pytest.mark.parametrize("mechanism", ["gep", "gp"])
@pytest.mark.parametrize(
    ("module", "data", "message"),
    [
        (Classifier, lambda: loader(collate_fn=collate_that_mixes), "collate function mixes records"),
        (WithMean, lambda: loader(collate_fn=collate_with_a_mean), "collate function mixes records"),
        (MixesAfterTransfer, loader, "on_after_batch_transfer mixes records"),
        (MixesBeforeTransfer, loader, "on_before_batch_transfer, .* mixes records"),
        (Classifier, DataThatMixes, "on_before_batch_transfer, .* mixes records"),
    ],
)
def test_no_mechanism_trains_on_mixed_records(module, data, message, mechanism, tmp_path):
    used = strategy(mechanism=mechanism)
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path, used).fit(module().eval(), data())
    assert used.privacy is None


class Doubles(LightningDataModule):
    """Its hook acts on each record by itself, so public batches have to pass through it too."""

    def train_dataloader(self):
        x, y = records().tensors
        return DataLoader(TensorDataset(x[:, :3], y), batch_size=12)

    def aux_dataloader(self):
        x, y = records(seed=99).tensors
        return DataLoader(TensorDataset(x[:, :3], y), batch_size=20)

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return torch.cat([batch[0], batch[0]], dim=1), batch[1]


def test_hooks_of_a_datamodule_act_on_public_batches_as_on_private_ones(tmp_path):
    used = strategy(aux_dataloader=None)
    trainer(tmp_path, used, max_steps=1).fit(Classifier(), Doubles())
    assert used.privacy.steps == 1
