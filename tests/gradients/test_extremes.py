"""A record with an extreme value may not change the others on the way into a batch, however tame public records are."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.extremes import extreme_batches, extreme_records, shorter_records
from lightning_gep.gradients.mixing import check_collate
from tests.toys import Classifier, loader, strategy, trainer


def tokens(length, label=1):
    return torch.arange(1, length + 1), label


def padded_to_the_longest(batch):
    return pad_sequence([words for words, _ in batch], batch_first=True), torch.tensor([label for _, label in batch])


def padded_to_ten(batch):
    rows = [nn.functional.pad(words[:10], (0, 10 - len(words[:10]))) for words, _ in batch]
    return torch.stack(rows), torch.tensor([label for _, label in batch])


def without_what_is_not_finite(batch):
    return default_collate([record for record in batch if torch.isfinite(record[0]).all()])


def all_or_nothing(batch):
    x, y = default_collate(batch)
    return (x if torch.isfinite(x).all() else torch.zeros_like(x)), y


def scaled_by_the_last_dimension(batch):
    longest = max(sound.shape[-1] for sound, _ in batch)
    return torch.stack([nn.functional.pad(sound, (0, longest - sound.shape[-1])) for sound, _ in batch]), [
        label for _, label in batch
    ]


TEXTS = [tokens(8, i) for i in range(8)]
NUMBERS = [(torch.randn(3, generator=torch.Generator().manual_seed(i)), i) for i in range(8)]
SOUNDS = [(torch.randn(2, 6, generator=torch.Generator().manual_seed(i)), i) for i in range(8)]


@pytest.mark.parametrize(
    ("collate", "records"),
    [
        (padded_to_the_longest, TEXTS),
        (all_or_nothing, NUMBERS),
        (scaled_by_the_last_dimension, SOUNDS),
    ],
)
def test_a_collate_function_is_tried_on_records_unlike_the_public_ones(collate, records):
    with pytest.raises(ConfigurationError, match=r"mixes records.*padding them to the longest of the batch"):
        check_collate(DataLoader(records, collate_fn=collate), records)


@pytest.mark.parametrize(
    ("collate", "records"),
    [(padded_to_ten, TEXTS), (without_what_is_not_finite, NUMBERS), (lambda batch: default_collate(batch), SOUNDS)],
)
def test_what_a_collate_function_does_to_each_record_is_fine(collate, records):
    check_collate(DataLoader(records, collate_fn=collate), records)


def test_a_transfer_hook_that_clears_a_batch_is_refused(tmp_path):
    class Clears(Classifier):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            x, y = batch
            return (x if torch.isfinite(x).all() else torch.zeros_like(x)), y

    with pytest.raises(ConfigurationError, match="on_after_batch_transfer mixes records"):
        trainer(tmp_path, strategy()).fit(Clears(), loader())


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


def test_shorter_records_are_cut_one_value_at_a_time_and_as_a_whole():
    record = {"sound": torch.ones(4, 6), "text": "abcd", "tokens": [1, 2, 3, 4], "label": 3}
    shapes = [(tuple(one["sound"].shape), one["text"], len(one["tokens"])) for one in shorter_records(record)]
    assert shapes == [
        ((2, 6), "abcd", 4),
        ((4, 3), "abcd", 4),
        ((4, 6), "ab", 4),
        ((4, 6), "abcd", 2),
        ((2, 6), "ab", 2),
        ((4, 3), "ab", 2),
    ]
