"""Masks and augmentations of private records follow no seed: with a known one they would break the clipping bound."""

import random

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_gep.gradients.randomness import renew_random_states
from tests.toys import INF, RECORDS, Classifier, loader, public_loader, records, strategy, trainer, weights


def test_all_of_the_state_of_torch_is_new_and_its_numbers_are_as_they_should_be():
    states, others = [], []
    for _ in range(2):
        seed_everything(0)
        renew_random_states()
        states.append(torch.get_rng_state())
        others += [random.random(), np.random.rand()]
    assert len(set(others)) == 4, "nor do those of NumPy and Python follow the seed"
    words = [state.numpy()[24 : 24 + 8 * 624].view(np.uint64) for state in states]
    assert (words[0] < 2**32).all()
    assert (words[0] == words[1]).sum() < 3
    x = torch.rand(100_000, dtype=torch.float64)
    assert float(x.mean()) == pytest.approx(0.5, abs=0.006)
    assert float(x.var()) == pytest.approx(1 / 12, abs=0.002)
    assert abs(float(torch.corrcoef(torch.stack([x[:-1], x[1:]]))[0, 1])) < 0.02


class Seeds(Classifier):
    """Seeds at the start of every epoch and batch, too, which some do to make runs repeatable."""

    def on_train_epoch_start(self):
        seed_everything(0)

    def on_train_batch_start(self, batch, batch_idx):
        seed_everything(0)


class WithDropout(Seeds):
    def forward(self, x):
        return self.out(nn.functional.dropout(torch.tanh(self.hidden(x)), 0.5, self.training))


class AugmentsOnTheDevice(Seeds):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] * torch.rand(len(batch[0]), 1), batch[1]


class HasGenerator(Seeds):
    """Of its own and with a known seed; records are differentiated one by one."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.generators = {"numpy": np.random.default_rng(0), "torch": torch.Generator().manual_seed(0)}

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0] * self.draw(self.generators)), batch[1])


class Augmented(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x * torch.rand(1), y


def fitted(tmp_path, module, data, **settings):
    """Weights after a step on all records without noise: only masks and augmentations can tell two of them apart."""
    seed_everything(0)
    built = module()
    used = strategy(mechanism="gp", noise_multiplier=0.0, clip_norm=INF, **{"generator": "system", **settings})
    trainer(tmp_path, used, max_steps=1).fit(built, data())
    return weights(built)


def everything(dataset=TensorDataset, **settings):
    return lambda: DataLoader(dataset(*records().tensors), batch_size=RECORDS, **settings)


def in_a_worker():
    return everything(Augmented, num_workers=1, generator=torch.Generator().manual_seed(0))()


RANDOM = {
    "dropout": (WithDropout, everything()),
    "augmentation by torch": (Seeds, everything(Augmented)),
    "augmentation in a worker": (Seeds, in_a_worker),
    "NumPy's generator": (lambda: HasGenerator(lambda held: held["numpy"].random()), everything()),
    "torch's generator": (
        lambda: HasGenerator(lambda held: torch.rand((), generator=held["torch"]).item()),
        everything(),
    ),
    "augmentation on the device, of what workers read": (AugmentsOnTheDevice, everything(num_workers=1)),
}


@pytest.mark.filterwarnings("ignore:There is no noise")
@pytest.mark.parametrize("what", RANDOM)
def test_what_is_random_in_training_follows_no_seed(what, tmp_path):
    module, data = RANDOM[what]
    assert not torch.equal(fitted(tmp_path, module, data), fitted(tmp_path, module, data))


@pytest.mark.filterwarnings("ignore:There is no noise")
def test_without_anything_random_or_with_a_seeded_generator_runs_repeat(tmp_path):
    runs = [fitted(tmp_path, Classifier, everything()) for _ in range(2)]
    torch.testing.assert_close(*runs, rtol=0, atol=1e-6)  # the order of the records is random, and sums round
    module, data = RANDOM["dropout"]
    seeded = [fitted(tmp_path, module, data, generator="seeded") for _ in range(2)]
    assert torch.equal(*seeded)


def test_a_fit_leaves_the_random_states_of_the_user_alone(tmp_path):
    found = []
    for _ in range(2):
        seed_everything(5)
        used = strategy(generator="system", aux_dataloader=public_loader())
        trainer(tmp_path, used, max_steps=2).fit(WithDropout(), everything()())
        found.append((torch.rand(2).tolist(), np.random.rand(), random.random()))
    assert found[0] == found[1]


STATES = []


class Publishes(Classifier):
    """Draws on private records; other hooks may draw again, and publish it."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        STATES[:] = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
        return batch

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx) * (torch.rand(()) + random.random() + np.random.rand())
        STATES[:] = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
        return loss

    def on_train_batch_start(self, batch, batch_idx):
        self.on_train_batch_end(None, batch, batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert not torch.equal(torch.get_rng_state(), STATES[0])
        assert random.getstate() != STATES[1]
        assert not np.array_equal(np.random.get_state()[1], STATES[2])


def test_numbers_that_hooks_draw_do_not_continue_those_of_private_records(tmp_path):
    """A few hundred of them tell the state of a Mersenne Twister, and that all numbers before."""
    private = strategy(mechanism="gp", gradients="loop", generator="system")
    trainer(tmp_path, private, max_epochs=1).fit(Publishes(), loader(batch_size=30))
    assert STATES
