"""Public records that are training records are found in any structure and under any label; others are not."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy.overlap import content_of, distinctive_digests
from lightning_gep.strategy.public_data import check_disjoint, identify
from tests.toys import records

COUNT = 60
X, Y = records(COUNT).tensors
OTHER_X, _ = records(COUNT, seed=5).tensors
OTHER_Y = (Y + 1) % 3
TOKENS = torch.randint(5, 1000, (COUNT, 12), generator=torch.Generator().manual_seed(0))
OTHER_TOKENS = TOKENS.flip(1) + 1
POSITIONS, PADDED = torch.arange(12), torch.tensor([1] * 8 + [0] * 4)


class Made(Dataset):
    """Records made from inputs and labels."""

    def __init__(self, make, x, y):
        self.make, self.x, self.y = make, x, y

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self.make(self.x[index], self.y[index], index)


@dataclass
class Record:
    x: Any
    y: Any


Named = namedtuple("Named", "y x")


def refused(public, private):
    try:
        check_disjoint(public, private)
    except ConfigurationError as error:
        return "is a training record (same content" in str(error)
    return False


def shares(make, inputs=(X, OTHER_X)):
    """Whether the same inputs with other labels are found, and whether other inputs with the same labels are."""
    x, other_x = inputs
    private = Made(make, x, Y)
    return [refused(Made(make, x, OTHER_Y), private), refused(Made(make, other_x, Y), private)]


STRUCTURES = {
    "tuple": lambda x, y, i: (x, y),
    "list": lambda x, y, i: [x, int(y)],
    "label first": lambda x, y, i: (y, x),
    "id first": lambda x, y, i: (i, x, y),
    "dict": lambda x, y, i: {"x": x, "y": y},
    "dict with an id": lambda x, y, i: {"id": i, "name": f"{i:05}", "x": x, "y": y},
    "dict of arrays": lambda x, y, i: {"x": x.numpy(), "y": y.numpy()},
    "dataclass": lambda x, y, i: Record(x, y),
    "named tuple": lambda x, y, i: Named(y, x),
    "nested": lambda x, y, i: {"in": [{"x": x}, i], "out": Record(y, None)},
    "several inputs": lambda x, y, i: {"left": x, "right": 2 * x, "y": y},
    "a mask": lambda x, y, i: {"mask": torch.ones(100), "x": x, "y": y},
    "a table": lambda x, y, i: {"table": torch.arange(100.0), "x": x, "y": y},
    "numbers": lambda x, y, i: {**{f"feature {j}": float(x[j]) for j in range(6)}, "y": int(y)},
    "two numbers": lambda x, y, i: {"x": float(x[0]), "y": int(y)},
    "text": lambda x, y, i: {"text": f"a text with {x[0]:.5f} in it", "label": ("bad", "good", "neither")[y]},
    "text first": lambda x, y, i: (f"a text with {x[0]:.5f} in it", int(y)),
}


@pytest.mark.parametrize("make", STRUCTURES.values(), ids=STRUCTURES)
def test_the_same_inputs_are_found_under_other_labels_and_others_are_not_taken_for_them(make):
    assert shares(make) == [True, False]


TOKENISED = {
    "tensors": lambda x, y, i: {"input_ids": x, "attention_mask": PADDED, "position_ids": POSITIONS, "labels": y},
    "lists": lambda x, y, i: {"input_ids": x.tolist(), "attention_mask": PADDED.tolist(), "labels": int(y)},
    "a label for each token": lambda x, y, i: {"input_ids": x, "labels": torch.cat((y.repeat(3), POSITIONS[:9]))},
}


@pytest.mark.parametrize("make", TOKENISED.values(), ids=TOKENISED)
def test_masks_positions_and_labels_as_long_as_the_input_are_no_input(make):
    assert shares(make, (TOKENS, OTHER_TOKENS)) == [True, False]


def test_a_binary_image_is_an_input():
    x = (torch.rand(2 * COUNT, 40, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    assert shares(lambda x, y, i: {"image": x, "y": y}, (x[:COUNT], x[COUNT:])) == [True, False]


def test_one_of_two_inputs_is_enough():
    private = Made(lambda x, y, i: {"left": x, "right": OTHER_X[i], "y": y}, X, Y)
    public = Made(lambda x, y, i: {"left": torch.zeros(6), "right": OTHER_X[i], "y": y}, X, OTHER_Y)
    assert refused(public, private)


def test_training_records_that_are_equal_by_accident_are_found():
    x = X[torch.arange(COUNT) // 3]
    assert shares(STRUCTURES["dict"], (x, OTHER_X)) == [True, False]


def test_structures_may_differ():
    assert refused(Made(STRUCTURES["tuple"], X, OTHER_Y), Made(STRUCTURES["dict"], X, Y))


def test_the_hash_of_dictionaries_is_that_of_their_inputs():
    def hash_of(x, y):
        public = Made(STRUCTURES["dict"], x, y)
        return identify(public, *check_disjoint(public, Made(STRUCTURES["dict"], X + 1, Y))).sha256

    assert hash_of(X, Y) == hash_of(X, OTHER_Y) != hash_of(OTHER_X, Y)


@pytest.mark.parametrize("odd", [lambda: None, {"f": lambda: None, "x": 1}, np.array([{}, []], dtype=object)])
def test_records_that_cannot_be_compared_are_told(odd):
    content = content_of(odd)
    assert content.input is None or content.digests
    private = Made(lambda x, y, i: lambda: None, X, Y)
    _, said = check_disjoint(Made(STRUCTURES["dict"], X, Y), private)
    assert said == "all training records, as far as records could be compared by content"


def test_digests_do_not_depend_on_where_a_tensor_is_in_memory():
    assert content_of({"x": X[1], "y": 0}) == content_of({"x": torch.stack([X[0], X[1]])[1], "y": 1})
    assert distinctive_digests([]) == set()
