"""Collate functions that pad: for records of one length as they are, for others with `FixedLength`."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from lightning_gep import FixedLength
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.mixing import check_collate
from tests.toys import CLASSES, Classifier, strategy, trainer

WORDS, PADDING, IGNORED = 20, 19, -100


def hugging(records):
    """Like a collator of Hugging Face: tokens, mask and labels each have their own padding, on the left."""
    longest = max(len(record["input_ids"]) for record in records)

    def column(name, padding):
        return torch.tensor([[padding] * (longest - len(record[name])) + list(record[name]) for record in records])

    return {
        "input_ids": column("input_ids", PADDING),
        "attention_mask": column("attention_mask", 0),
        "labels": column("labels", IGNORED),
        "weight": torch.tensor([record["weight"] for record in records]),
    }


def record(length, seed=0):
    tokens = np.random.default_rng([seed, length]).integers(1, WORDS - 2, length).tolist()
    return {"input_ids": tokens, "attention_mask": [1] * length, "labels": tokens, "weight": [0.5, 2.0]}


def pairs(records):
    return pad_sequence([x for x, _ in records], batch_first=True), torch.tensor([y for _, y in records])


def test_it_pads_as_the_other_function_does_in_a_batch_with_a_record_of_that_length():
    records = [record(n) for n in (3, 8, 5)]
    batch = FixedLength(hugging, 12)(records)
    expected = hugging([*records, record(12)])
    assert all(torch.equal(batch[name], expected[name][:3]) for name in expected)
    x, y = FixedLength(pairs, 6)([(torch.ones(2), 0), (torch.ones(9), 1)])
    assert (x.sum(dim=1).tolist(), x.shape, y.tolist()) == ([2, 6], (2, 6), [0, 1])
    assert not check_collate(
        DataLoader(records, collate_fn=FixedLength(hugging, 12)), [record(n) for n in range(3, 11)]
    )


def test_a_length_has_to_be_one():
    with pytest.raises(ConfigurationError, match="length must be a whole number above 0"):
        FixedLength(hugging, 0)


class Reader(Classifier):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 6)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(self.words(x).mean(dim=1)), y)


def texts(*lengths, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [(torch.randint(1, WORDS, (n,), generator=draw), i % CLASSES) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("mechanism", ["gp", "gep"])
def test_records_of_one_length_may_be_padded_and_others_are_refused_before_training(mechanism, tmp_path):
    public = DataLoader(texts(*[7] * 40, seed=1), batch_size=20, collate_fn=pairs)

    def fit(data, collate, steps=3):
        used = strategy(mechanism=mechanism, **({"aux_dataloader": public} if mechanism == "gep" else {}))
        made = trainer(tmp_path, used, max_steps=steps)
        made.fit(Reader(), DataLoader(data, batch_size=10, collate_fn=collate))
        return used.privacy.steps

    assert fit(texts(*[7] * 40), pairs) == 3
    with pytest.raises(ConfigurationError, match=r"FixedLength\(collate_fn, 128\)"):
        fit(texts(*[7] * 20, *[5] * 20), pairs)
    assert fit(texts(*[7] * 20, *[5] * 20), FixedLength(pairs, 7)) == 3


def test_a_record_of_another_length_is_not_padded_during_training(tmp_path):
    used = strategy(mechanism="gp", noise_multiplier=1.0)
    data = texts(*[7] * 64, *[5] * 16)
    with pytest.raises(ConfigurationError, match="different lengths, and the collate function pads"):
        trainer(tmp_path, used, max_epochs=4).fit(Reader(), DataLoader(data, batch_size=40, collate_fn=pairs))
    assert used.privacy.steps == 0
