"""Records that are mixed on their way into a batch are found, whatever coin decides on it; others are left alone."""

import random
from collections import namedtuple

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torchvision.transforms import v2

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.mixing import check_collate, extreme_batches, extreme_records, mixes, shorter_records
from lightning_gep.gradients.randomness import random_state_kept
from tests.toys import Classifier, loader, public_loader, records, refusal, strategy, trainer

INPUTS = torch.arange(24.0).reshape(8, 3)
IMAGES = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def each_by(augmentation):
    return lambda positions: torch.stack([augmentation(IMAGES[i]) for i in positions])


@pytest.mark.parametrize(
    "make",
    [
        lambda which: {"x": INPUTS[which], "names": [str(i) for i in which], "scale": torch.tensor(2.0), "n": 4},
        lambda which: INPUTS[which] * torch.rand(len(which), 1) + np.random.rand() + random.random(),
        lambda which: (INPUTS[which] * torch.rand(len(which), 1), torch.rand(())),
        lambda which: INPUTS[which].masked_fill(torch.tensor([True, False, False]), float("nan")),
        *map(each_by, (v2.ColorJitter(hue=0.1), v2.RandomAffine(10), v2.RandomErasing())),
        lambda which: v2.RandomPhotometricDistort()(IMAGES[which]),
    ],
)
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
        lambda x: (x, len(x)),  # one record more changes it for all
        lambda x: (x, torch.tensor(1 / len(x))),
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


def collate_with_a_count(items):
    return *default_collate(items), len(items)


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


def cleared(module, x):
    return x if torch.isfinite(x).all() else torch.zeros_like(x)


def centred(module, x):
    module.last = x.mean(0)
    return x


def in_training(module):
    return module.training and module.trainer.training


AFTER = "on_after_batch_transfer"
REFUSED = {
    "collate": ({}, Classifier, lambda: loader(collate_fn=collate_that_mixes), "collate function mixes records"),
    "collate under gp": (
        {"mechanism": "gp"}, Classifier, lambda: loader(collate_fn=collate_that_mixes), "collate function mixes records"
    ),
    "a mean": (
        {"mechanism": "gp"}, Changes, lambda: loader(collate_fn=collate_with_a_mean), "collate function mixes records"
    ),
    "a count": (
        {"mechanism": "gp"}, Changes, lambda: loader(collate_fn=collate_with_a_count), "mixes records.* how many"
    ),
    "a hook in training only": ({}, lambda: Changes(after=mixed_if(in_training)), loader, f"{AFTER} mixes records"),
    "a hook before the transfer": (
        {"mechanism": "gp"},
        lambda: Changes(before=lambda _, x: neighbours(x)),
        loader,
        "on_before_batch_transfer, .* mixes records",
    ),
    "a hook of the datamodule": ({}, Classifier, DataThatMixes, "on_before_batch_transfer, .* mixes records"),
    "a hook that clears a batch": ({}, lambda: Changes(after=cleared), loader, f"{AFTER} mixes records"),
    "a hook that keeps a mean": (
        {}, lambda: Changes(lambda m, x: x - m.last, after=centred), loader, f"{AFTER} sets last of the module, by"
    ),
    "every other batch": (
        {"gradients": "hooks"}, lambda: Changes(mixed_if(lambda m: m.index % 2)), loader, "hooks would mix records"
    ),
    "too small a public batch": (
        {"aux_dataloader": DataLoader(records(seed=99), batch_size=3)},
        Classifier,
        loader,
        "public batch has 3 records; checking takes 4 at least",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_no_mechanism_trains_on_mixed_records(case, tmp_path):
    settings, module, data, message = REFUSED[case]
    refusal(tmp_path, message, module().eval(), data(), strategy(**settings))


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
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.centre = batch[0].mean(0)


class EndsEpochs(Classifier):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if len(batch) > 3 else None


@pytest.mark.parametrize(("module", "callbacks"), [(Classifier, [MixUp]), (CentresAfterwards, []), (EndsEpochs, [])])
def test_hooks_and_callbacks_get_no_private_records(module, callbacks, tmp_path):
    used = strategy()
    with pytest.raises(ConfigurationError, match="cannot read private records"):
        trainer(tmp_path, used, callbacks=[made() for made in callbacks]).fit(module(), loader())
    assert used.privacy.steps <= 1


@pytest.mark.parametrize("gradients", ["functional", "loop"])
def test_records_that_are_alone_may_be_trained_on_with_what_would_mix_a_batch(gradients, tmp_path):
    used = strategy(gradients=gradients)
    trainer(tmp_path, used).fit(Changes(mixed_if(later)), loader(batch_size=20))
    assert used.privacy.steps > 3


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
    refusal(tmp_path, r"on_after_batch_transfer changes seen: .* released without noise", module)
    assert module.calls == 0
    assert not module.seen.any()


class Kinds(TensorDataset):
    """Records as they come: reversed arrays, numbers that torch does not know, names."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        time = np.array(np.datetime64("2026-01-01") + index)
        return {"x": x.numpy()[::-1], "y": int(y), "id": np.uint16(index), "name": f"{index}", "time": time}


def taking_apart(items):
    x = torch.from_numpy(np.stack([item.pop("x") for item in items]))
    return x, torch.tensor([item.pop("y") for item in items])


def test_a_collate_function_that_takes_records_apart_is_fine_under_gp(tmp_path):
    used, data = strategy(mechanism="gp"), Kinds(*records().tensors)
    trainer(tmp_path, used, max_steps=1).fit(Classifier(), DataLoader(data, batch_size=12, collate_fn=taking_apart))
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


def padded_to_the_longest(batch):
    return pad_sequence([words for words, _ in batch], batch_first=True), torch.tensor([label for _, label in batch])


def words_as_numbers(batch):
    return padded_to_the_longest([(torch.tensor([ord(c) for c in text]), label) for text, label in batch])


def padded_to_ten(batch):
    rows = [nn.functional.pad(words[:10], (0, 10 - len(words[:10]))) for words, _ in batch]
    return torch.stack(rows), torch.tensor([label for _, label in batch])


def without_what_is_not_finite(batch):
    return default_collate([record for record in batch if torch.isfinite(record[0]).all()])


def all_or_nothing(batch):
    x, y = default_collate(batch)
    return (x if torch.isfinite(x).all() else torch.zeros_like(x)), y


def padded_in_the_last_dimension(batch):
    longest = max(sound.shape[-1] for sound, _ in batch)
    sounds = torch.stack([nn.functional.pad(sound, (0, longest - sound.shape[-1])) for sound, _ in batch])
    return sounds, [label for _, label in batch]


TEXTS = [(torch.arange(1, 9), i) for i in range(8)]
NUMBERS = [(torch.randn(3, generator=torch.Generator().manual_seed(i)), i) for i in range(8)]
SOUNDS = [(torch.randn(2, 6, generator=torch.Generator().manual_seed(i)), i) for i in range(8)]


@pytest.mark.parametrize(
    ("collate", "records"),
    [(all_or_nothing, NUMBERS), (words_as_numbers, [(i * "ab" + "c", i) for i in range(1, 9)])],
)
def test_a_collate_function_is_tried_on_records_unlike_the_public_ones(collate, records):
    with pytest.raises(ConfigurationError, match=r"mixes records.*padding them to the longest of the batch.*FixedLen"):
        check_collate(DataLoader(records, collate_fn=collate), records)


@pytest.mark.parametrize(
    ("collate", "records"), [(padded_to_the_longest, TEXTS), (padded_in_the_last_dimension, SOUNDS)]
)
def test_one_that_pads_to_the_longest_is_for_records_of_one_length(collate, records):
    assert check_collate(DataLoader(records, collate_fn=collate), records)
    with pytest.raises(ConfigurationError, match=r"mixes records.*FixedLength\(collate_fn, 128\)"):
        check_collate(
            DataLoader(records, collate_fn=collate), [*([*shorter_records(r)][-1] for r in records[1:]), records[0]]
        )


@pytest.mark.parametrize(
    ("collate", "records"),
    [(padded_to_ten, TEXTS), (without_what_is_not_finite, NUMBERS), (lambda batch: default_collate(batch), SOUNDS)],
)
def test_what_a_collate_function_does_to_each_record_is_fine(collate, records):
    assert not check_collate(DataLoader(records, collate_fn=collate), records)


Pair = namedtuple("Pair", "x y")


def test_extreme_values_keep_structure_shape_and_type():
    batch = {"x": torch.zeros(3, 2, dtype=torch.float16), "y": np.zeros(3, np.uint8), "names": ["a", "b", "c"]}
    found = list(extreme_batches(batch, row=1))
    assert len(found) == 8 + 3 + 1
    for one in found:
        assert (one["x"].shape, one["x"].dtype, one["y"].dtype) == ((3, 2), torch.float16, np.uint8)
        assert not one["x"][[0, 2]].any()
        assert not one["y"][[0, 2]].any()
        assert one["names"][::2] == ["a", "c"]
    assert sum(bool(torch.isinf(one["x"][1]).all()) for one in found) == 4, "1e30 is too large for half precision"
    assert found[-1]["names"] == ["a", "", "c"]
    record = Pair({"x": torch.ones(2), "flag": True}, 3)
    assert all(isinstance(one, Pair) for one in extreme_records(record))
    assert [one.y for one in extreme_records(record)][-3:] == [0, -1, -100]
    assert record.x["flag"] is True
