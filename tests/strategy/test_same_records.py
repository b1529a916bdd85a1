import random
import time

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, random_split

from lightning_gep import RandomLabels
from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy.overlap import check_no_repeats, share_records
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


class Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)

    def __len__(self):
        return 2**62


def test_a_subset_of_a_permutation_is_followed_in_its_order():
    base = records(1000)
    permuted = Subset(base, torch.randperm(1000, generator=torch.Generator().manual_seed(0)))
    kept, rest = Subset(permuted, range(500)), Subset(permuted, range(500, 1000))
    assert not share_records(kept, rest)
    assert share_records(Subset(base, range(500)), rest)
    assert not share_records(Subset(base, [int(i) for i in permuted.indices[:500]]), rest)


def test_a_subset_of_several_data_sets_takes_what_it_says():
    first, second = records(60), records(40, seed=2)
    both = ConcatDataset([first, second])
    assert not share_records(Subset(both, range(60)), second)
    assert share_records(Subset(both, range(60)), Subset(first, [59]))
    assert not share_records(Subset(both, range(60, 100)), first)
    assert share_records(Subset(both, [-1]), Subset(second, [39]))
    assert not share_records(Subset(both, [-1]), Subset(second, range(39)))


def test_parts_of_a_split_share_nothing():
    parts = random_split(ConcatDataset([records(60), records(40, seed=2)]), [50, 30, 20])
    assert not any(share_records(parts[i], parts[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    inner = random_split(parts[0], [25, 25])
    assert not share_records(*inner)
    assert share_records(inner[0], parts[0])


def test_a_wrapper_of_the_same_length_keeps_the_order():
    base = records(60)
    wrapped = RandomLabels(Subset(base, range(59, -1, -1)), 3)
    assert share_records(Subset(wrapped, [0]), Subset(base, [59]))
    assert not share_records(Subset(wrapped, [0]), Subset(base, range(59)))


def test_a_wrapper_of_another_length_may_hold_all():
    base = records(60)
    assert share_records(Subset(Doubled(Subset(base, range(30))), [0]), Subset(base, [29]))
    assert share_records(Subset(Doubled(base), [119]), base)
    assert not share_records(Doubled(Subset(base, range(30))), Subset(base, range(30, 60)))


def test_data_sets_without_records_by_index_share_none():
    assert not share_records(Endless(), records())
    assert not share_records(WithoutLength(), records())
    assert not share_records([1, 2], records())


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


def test_it_is_what_reading_all_records_tells():
    draw = random.Random(0)
    bases = [OwnRecords(name, count) for name, count in (("a", 40), ("b", 25), ("c", 30))]
    seen = set()
    for _ in range(300):
        first, second = (nested(bases, draw, draw.randrange(6)) for _ in range(2))
        shared = bool({first[i] for i in range(len(first))} & {second[i] for i in range(len(second))})
        assert share_records(first, second) == shared
        seen.add(shared)
    assert seen == {True, False}


def test_a_million_records_take_no_time():
    base = TensorDataset(torch.zeros(1_000_000))
    order = torch.randperm(len(base), generator=torch.Generator().manual_seed(0)).tolist()
    permuted = Subset(base, order)
    start = time.process_time()
    assert not share_records(Subset(permuted, range(500_000)), Subset(base, order[500_000:]))
    assert time.process_time() - start < 3


def repeats(dataset):
    try:
        check_no_repeats(dataset)
    except ConfigurationError:
        return True
    return False


def test_repeats_are_what_reading_all_records_tells():
    draw = random.Random(1)
    bases = [OwnRecords(name, count) for name, count in (("a", 40), ("b", 25), ("c", 30))]
    seen = set()
    for _ in range(300):
        data = nested(bases, draw, draw.randrange(6))
        read = [data[i] for i in range(len(data))]
        assert repeats(data) == (len(set(read)) < len(read))
        seen.add(repeats(data))
    assert seen == {True, False}


def test_repeats_are_counted_and_the_line_to_change_is_named():
    base = records(60)
    with pytest.raises(ConfigurationError, match=r"1 record more than once \(up to 10 times\).*sorted\(set\(indices"):
        check_no_repeats(Subset(base, [0] * 10 + list(range(1, 60))))
    with pytest.raises(ConfigurationError, match=r"60 records more than once \(up to 3 times\).*no dataset twice"):
        check_no_repeats(ConcatDataset([base] * 3))


def test_a_negative_index_is_that_of_a_record():
    assert repeats(Subset(records(60), [59, -1]))
    assert not repeats(Subset(records(60), [59, -2]))


def test_a_wrapper_of_another_length_holds_records_of_what_it_wraps():
    base = records(60)
    assert repeats(Doubled(base))
    assert repeats(Subset(Doubled(base), [3, 3]))
    assert repeats(ConcatDataset([base, Passes(base)]))


def test_records_of_equal_content_are_no_repeats():
    assert not repeats(TensorDataset(torch.zeros(60, 3)))


def test_looking_for_repeats_among_a_million_records_takes_no_time():
    base = TensorDataset(torch.zeros(1_000_000))
    order = torch.randperm(len(base), generator=torch.Generator().manual_seed(0)).tolist()
    start = time.process_time()
    assert not repeats(Subset(ConcatDataset([Subset(base, order)]), range(1_000_000)))
    assert repeats(Subset(base, [*order, 7]))
    assert time.process_time() - start < 2
