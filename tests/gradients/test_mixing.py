"""Records that are mixed on their way into a batch are found, whatever coin decides on it; others are left alone."""

import random

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate
from torchvision.transforms import v2

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.mixing import mixes
from lightning_gep.gradients.randomness import random_state_kept
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


AUGMENTATIONS = [
    v2.ColorJitter(hue=0.1),
    v2.GaussianBlur(3, (0.1, 2.0)),
    v2.RandomAffine(10, scale=(0.8, 1.2)),
    v2.RandomPhotometricDistort(),
    v2.RandomHorizontalFlip(),
    v2.RandomErasing(),
]


@pytest.mark.parametrize("augmentation", AUGMENTATIONS, ids=lambda one: type(one).__name__)
def test_augmentations_of_each_record_are_no_mixing(augmentation):
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert not mixes(lambda positions: torch.stack([augmentation(images[i]) for i in positions]), 8)
    assert not mixes(lambda positions: augmentation(images[positions]), 8)


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
        now_and_then(lambda: torch.rand(1).item(), 0.1),
        now_and_then(np.random.rand, 0.1),
        now_and_then(random.random, 0.1),
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


class Changes(Classifier):
    """Changes batches (x, y) in training_step, or before or after their transfer, by a function of itself and x."""

    def __init__(self, inside=None, before=None, after=None):
        super().__init__()
        self.changes = {"inside": inside, "before": before, "after": after}
        self.last, self.index = 0.0, 0

    def change(self, where, batch):
        by = self.changes[where]
        return batch if by is None else (by(self, batch[0]), *batch[1:])

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return self.change("before", batch)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return self.change("after", batch)

    def training_step(self, batch, batch_idx):
        self.index = batch_idx
        x, y, *mean = self.change("inside", batch)
        return super().training_step((x - mean[0] if mean else x, y), batch_idx)


def mixed_if(condition, by=pairs):
    return lambda module, x: by(x) if condition(module) else x


class Data(LightningDataModule):
    def train_dataloader(self):
        return loader()

    def aux_dataloader(self):
        return public_loader()


class DataThatMixes(Data):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return pairs(batch[0]), batch[1]


@pytest.mark.parametrize(
    ("mechanism", "module", "data", "message"),
    [
        ("gep", Classifier, lambda: loader(collate_fn=collate_that_mixes), "collate function mixes records"),
        ("gp", Classifier, lambda: loader(collate_fn=collate_that_mixes), "collate function mixes records"),
        ("gp", Changes, lambda: loader(collate_fn=collate_with_a_mean), "collate function mixes records"),
        # As usual: in training only.
        (
            "gep",
            lambda: Changes(after=mixed_if(lambda m: m.training and m.trainer.training)),
            loader,
            "on_after_batch_transfer mixes records",
        ),
        (
            "gp",
            lambda: Changes(before=lambda _, x: neighbours(x)),
            loader,
            "on_before_batch_transfer, .* mixes records",
        ),
        ("gep", Classifier, DataThatMixes, "on_before_batch_transfer, .* mixes records"),
    ],
)
def test_no_mechanism_trains_on_mixed_records(mechanism, module, data, message, tmp_path):
    used = strategy(mechanism=mechanism)
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path, used).fit(module().eval(), data())
    assert used.privacy is None


def later(module):
    return module.current_epoch > 0


def remembers_later(module, x):
    before, module.last = module.last, x.mean(0, keepdim=True).detach()
    return x + before if later(module) else x


@pytest.mark.parametrize(
    ("where", "change", "gradients", "message"),
    [
        ("after", mixed_if(later), "auto", "on_after_batch_transfer mixes records"),
        ("inside", mixed_if(later), "hooks", "hooks would mix records"),
        ("inside", remembers_later, "functional", "training_step carries state"),
        ("inside", remembers_later, "loop", "training_step carries state"),
    ],
)
def test_mixing_from_a_later_epoch_on_ends_the_training_there(where, change, gradients, message, tmp_path):
    used = strategy(gradients=gradients)
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path, used).fit(Changes(**{where: change}), loader(batch_size=20))
    assert used.privacy.steps == 3


def test_a_training_step_that_mixes_every_other_batch_is_found_at_the_start(tmp_path):
    used = strategy(gradients="hooks")
    with pytest.raises(ConfigurationError, match="hooks would mix records"):
        trainer(tmp_path, used).fit(Changes(mixed_if(lambda m: m.index % 2)), loader())
    assert used.privacy is None


def test_a_training_step_that_mixes_at_some_steps_is_found_before_long(tmp_path):
    used = strategy(gradients="hooks")
    with pytest.raises(ConfigurationError, match="hooks would mix records"):
        trainer(tmp_path, used, max_epochs=60).fit(
            Changes(mixed_if(lambda m: m.global_step % 2)), loader(batch_size=30)
        )
    assert 0 < used.privacy.steps < 100


class MixUp(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch[0] = pairs(batch[0])


class CentresAfterwards(Classifier):
    centre = 0.0

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((x - self.centre, y), batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.centre = batch[0].mean(0)


class EndsEpochs(Classifier):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if len(batch) > 3 else None


@pytest.mark.parametrize(
    ("module", "callbacks"),
    [(Classifier, [MixUp]), (CentresAfterwards, []), (EndsEpochs, [])],
)
def test_hooks_and_callbacks_get_no_private_records(module, callbacks, tmp_path):
    used = strategy()
    with pytest.raises(ConfigurationError, match="cannot read private records"):
        trainer(tmp_path, used, callbacks=[made() for made in callbacks]).fit(module(), loader())
    assert used.privacy.steps <= 1


class LooksAtValidation(Classifier):
    def on_validation_batch_start(self, batch, batch_idx, dataloader_idx=0):
        self.seen = batch[0].shape


def test_hooks_of_validation_get_their_batches(tmp_path):
    module = LooksAtValidation()
    trainer(tmp_path, strategy(), num_sanity_val_steps=1).fit(module, loader(), loader(shuffle=False))
    assert len(module.seen) == 2


@pytest.mark.parametrize("gradients", ["functional", "loop"])
def test_records_that_meet_no_other_may_be_trained_on_with_what_would_mix_a_batch(gradients, tmp_path):
    used = strategy(gradients=gradients)
    trainer(tmp_path, used).fit(Changes(mixed_if(later)), loader(batch_size=20))
    assert used.privacy.steps > 3


def centred(module, x):
    module.last = x.mean(0)
    return x


def test_what_a_transfer_hook_keeps_could_mix_records(tmp_path):
    used = strategy()
    with pytest.raises(ConfigurationError, match="on_after_batch_transfer sets last of the module, by which"):
        trainer(tmp_path, used).fit(Changes(lambda module, x: x - module.last, after=centred), loader())
    assert used.privacy is None


class Sums(Classifier):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))
        self.calls = 0

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.calls += 1
        if self.trainer.training:
            self.seen += batch[0].sum(0)
        return batch


def test_what_a_transfer_hook_keeps_would_be_released(tmp_path):
    module = Sums()
    with pytest.raises(ConfigurationError, match=r"on_after_batch_transfer changes seen: .* released without noise"):
        trainer(tmp_path, strategy()).fit(module, loader())
    assert module.calls == 0
    assert not module.seen.any()


def test_a_public_batch_that_is_too_small_to_check_is_refused(tmp_path):
    used = strategy(aux_dataloader=DataLoader(records(seed=99), batch_size=3))
    with pytest.raises(ConfigurationError, match="public batch has 3 records; checking takes 4 at least"):
        trainer(tmp_path, used).fit(Classifier(), loader())


class Kinds(Dataset):
    """Records as they come: reversed arrays, numbers that torch does not know, names."""

    def __init__(self):
        self.records = records()

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        x, y = self.records[index]
        time = np.datetime64("2026-01-01") + index
        return {"x": x.numpy()[::-1], "y": int(y), "id": np.uint16(index), "name": f"{index}", "time": np.array(time)}


def taking_apart(items):
    return torch.from_numpy(np.stack([item.pop("x") for item in items])), torch.tensor(
        [item.pop("y") for item in items]
    )


def test_a_collate_function_that_takes_records_apart_is_fine_under_gp(tmp_path):
    used = strategy(mechanism="gp")
    data = DataLoader(Kinds(), batch_size=12, collate_fn=taking_apart)
    trainer(tmp_path, used, max_steps=1).fit(Classifier(), data)
    assert used.privacy.steps == 1


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
