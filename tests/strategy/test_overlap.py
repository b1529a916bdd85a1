"""Datasets that overlap are found by the identity of records and by content, whatever wraps or labels them."""

import random
import warnings
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy.data import Records
from lightning_gep.strategy.overlap import check_no_repeats, share_records
from lightning_gep.strategy.persons import PerPerson
from lightning_gep.strategy.public_data import check_disjoint
from tests.toys import records


class Doubled(Dataset):
    """Every record twice: longer than what it wraps."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return 2 * len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index // 2]


class Passes(Dataset):
    """As a transform would."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


class OwnRecords(Dataset):
    """Knows its records by name, for the slow comparison."""

    def __init__(self, name, count):
        self.names = [f"{name} {i}" for i in range(count)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.names[index]


class WithoutLength(Dataset):
    def __getitem__(self, index):
        return index


def test_a_wrapper_of_another_length_may_hold_all():
    base = records(60)
    assert share_records(Subset(Doubled(Subset(base, range(30))), [0]), Subset(base, [29]))
    assert share_records(Subset(Doubled(base), [119]), base)
    assert not share_records(Doubled(Subset(base, range(30))), Subset(base, range(30, 60)))
    assert repeats(Doubled(base))
    assert repeats(Subset(Doubled(base), [3, 3]))


@pytest.mark.parametrize(("data", "index"), [(records(60), 60), (records(60), -61), (WithoutLength(), 0)])
def test_an_index_that_leads_nowhere_is_named(data, index):
    with pytest.raises(ConfigurationError, match=rf"index {index}, but its {type(data).__name__} has .* __len__"):
        share_records(Subset(data, [index]), records())


def nested(bases, draw, depth):
    """A data set of subsets, concatenations and wrappers of the bases, chosen by chance."""
    kind = draw.choice(("subset", "concatenation", "wrapper")) if depth else "base"
    if kind == "base":
        return draw.choice(bases)
    inner = nested(bases, draw, depth - 1)
    if kind == "subset":
        return Subset(inner, draw.sample(range(len(inner)), max(1, len(inner) // 3)))
    return ConcatDataset([inner, nested(bases, draw, depth - 1)]) if kind == "concatenation" else Passes(inner)


def repeats(dataset):
    try:
        check_no_repeats(dataset)
    except ConfigurationError:
        return True
    return False


def test_it_is_what_reading_all_records_tells():
    draw = random.Random(0)
    bases = [OwnRecords(name, count) for name, count in (("a", 40), ("b", 25), ("c", 30))]
    seen = set()
    for _ in range(300):
        sets = [nested(bases, draw, draw.randrange(6)) for _ in range(2)]
        first, second = ([data[i] for i in range(len(data))] for data in sets)
        shared, repeated = bool({*first} & {*second}), len({*first}) < len(first)
        assert share_records(*sets) == shared
        assert repeats(sets[0]) == repeated
        seen.add((shared, repeated))
    assert len(seen) == 4


def test_repeats_are_counted_and_the_line_to_change_is_named():
    base = records(60)
    with pytest.raises(ConfigurationError, match=r"1 record more than once \(up to 10 times\).*sorted\(set\(indices"):
        check_no_repeats(Subset(base, [0] * 10 + list(range(1, 60))))
    with pytest.raises(ConfigurationError, match=r"60 records more than once \(up to 3 times\).*no dataset twice"):
        check_no_repeats(ConcatDataset([base] * 3))


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
    "masks of many kinds": lambda x, y, i: {"mask": (torch.arange(100) < i % 50).long(), "x": x.repeat(9), "y": y},
    "a table": lambda x, y, i: {"table": torch.arange(100.0), "x": x, "y": y},
    "numbers": lambda x, y, i: {**{f"feature {j}": float(x[j]) for j in range(6)}, "y": int(y)},
    "two numbers": lambda x, y, i: {"x": float(x[0]), "y": int(y)},
    "text": lambda x, y, i: {"text": f"a text with {x[0]:.5f} in it", "label": ("bad", "good", "neither")[y]},
    "one number and a list": lambda x, y, i: {"x": x[0], "y": torch.nn.functional.one_hot(y, 3)},
    "black and white": lambda x, y, i: {"x": x.view(torch.int32)[:, None] >> torch.arange(24) & 1, "y": y},
    "text first": lambda x, y, i: (f"a text with {x[0]:.5f} in it", int(y)),
}


@pytest.mark.parametrize("make", STRUCTURES.values(), ids=STRUCTURES)
def test_the_same_inputs_are_found_under_other_labels_and_others_are_not_taken_for_them(make):
    assert shares(make) == [True, False]
    if make is STRUCTURES["dict"]:
        equal_by_accident = X[torch.arange(COUNT) // 3]
        assert shares(make, (equal_by_accident, OTHER_X)) == [True, False]


# Masks, positions and labels are as long as the input.
TOKENISED = {
    "tensors": lambda x, y, i: {"input_ids": x, "attention_mask": PADDED, "position_ids": POSITIONS, "labels": y},
    "lists": lambda x, y, i: {"input_ids": x.tolist(), "attention_mask": PADDED.tolist(), "labels": int(y)},
    "a label for each token": lambda x, y, i: {"input_ids": x, "labels": torch.cat((y.repeat(3), POSITIONS[:9]))},
}


@pytest.mark.parametrize("make", TOKENISED.values(), ids=TOKENISED)
def test_tokens_are_found_under_other_labels(make):
    assert shares(make, (TOKENS, OTHER_TOKENS)) == [True, False]


class Together(Made):
    """Records read many at a time; one at a time they are others, which no DataLoader sees."""

    def __getitems__(self, indices):
        self.asked = getattr(self, "asked", 0) + 1
        return [Made.__getitem__(self, index) for index in indices]

    def __getitem__(self, index):
        return self.make(torch.zeros(6), self.y[index], index)


def test_records_are_read_as_a_loader_reads_them():
    private = Together(STRUCTURES["tuple"], X, Y)
    assert refused(Made(STRUCTURES["tuple"], X, OTHER_Y), private)
    assert private.asked < COUNT / 10
    assert refused(Together(STRUCTURES["tuple"], X, OTHER_Y), Made(STRUCTURES["tuple"], X, Y))


def test_one_of_two_inputs_is_enough():
    private = Made(lambda x, y, i: {"left": x, "right": OTHER_X[i], "y": y}, X, Y)
    public = Made(lambda x, y, i: {"left": torch.zeros(6), "right": OTHER_X[i], "y": y}, X, OTHER_Y)
    assert refused(public, private)


def test_the_hash_of_dictionaries_is_that_of_their_inputs():
    def hash_of(x, y):
        public = Made(STRUCTURES["dict"], x, y)
        return check_disjoint(public, Made(STRUCTURES["dict"], X + 1, Y)).sha256

    assert hash_of(X, Y) == hash_of(X, OTHER_Y) != hash_of(OTHER_X, Y)


FEW = torch.Generator().manual_seed(3)
CATEGORIES = torch.randint(4, (COUNT, 3), generator=FEW)
OTHER_CATEGORIES = torch.randint(4, (COUNT, 3), generator=FEW)
COINCIDE = {
    "categories and numbers": lambda c, x, i: (c, x, i % 2),
    "a dict of them": lambda c, x, i: {"categories": c, "numbers": x, "y": i % 2},
    "an id first": lambda c, x, i: (i, x, i % 2),
    "the same user": lambda c, x, i: (i % 7, float(x[0]), i % 2),
}


@pytest.mark.parametrize("make", COINCIDE.values(), ids=COINCIDE)
def test_records_that_agree_in_a_few_categories_or_ids_are_no_overlap(make):
    private = Made(lambda c, x, i: make(c, x, i), CATEGORIES, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_disjoint(Made(make, OTHER_CATEGORIES, OTHER_X), private)
    assert refused(Made(make, OTHER_CATEGORIES, X), private)


def test_records_of_few_bits_agree_by_chance_which_is_told_alike_whoever_takes_part():
    """A count on the card would tell whether a training record has the content of a public one."""
    private = Made(lambda c, y, i: {"c": c, "y": int(y)}, CATEGORIES, Y)
    public = Made(private.make, OTHER_CATEGORIES, Y)
    known = {tuple(row) for row in CATEGORIES.tolist()}
    assert any(tuple(row) in known for row in OTHER_CATEGORIES.tolist())
    others = Made(private.make, CATEGORIES + 10, Y)  # none of them has the content of a public record
    said = []
    for data in (private, others):
        with pytest.warns(UserWarning, match="may have the content of training records by chance"):
            said.append(check_disjoint(public, data))
    assert said[0] == said[1]


def test_the_word_of_the_user_is_taken_and_written_down():
    found = check_disjoint(Made(STRUCTURES["dict"], X, Y), Made(STRUCTURES["dict"], X, Y), trusted=True)
    assert found.compared_records == COUNT
    assert found.compared_with == "no training record: public_data_is_disjoint=True states that they differ"
    everything = records()
    with pytest.raises(ConfigurationError, match="both draw on the same dataset"):
        check_disjoint(Subset(everything, [1]), everything, trusted=True)


@pytest.mark.parametrize("odd", [lambda: None, {"f": lambda: None, "x": 1}, np.array([{}, lambda: None], dtype=object)])
def test_records_that_cannot_be_compared_are_told(odd):
    said = check_disjoint(Made(STRUCTURES["dict"], X, Y), Made(lambda x, y, i: odd, X, Y)).compared_with
    assert said == "all training records, as far as records could be compared by content"


def test_a_plain_list_is_followed_through_our_own_wrappers():
    notes = [{"user_id": i // 2, "x": float(i)} for i in range(20)]
    persons = PerPerson(notes, "user_id")
    for private in (notes, persons, Records(notes, reveal_errors=False)):
        assert share_records(notes, private)
    check_no_repeats(persons)
