from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import batch_size, microbatches, take


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Example:
    image: Tensor
    names: list[str]
    weight: float = 1.0


def pair(n: int = 5) -> Pair:
    return Pair(torch.arange(n), torch.arange(n * 2.0).reshape(n, 2))


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ([torch.zeros(5, 3), torch.zeros(5)], 5),
        ({"x": torch.zeros(5, 3), "meta": {"y": torch.zeros(5)}}, 5),
        (pair(), 5),
        (Example(torch.zeros(5, 2), list("abcde")), 5),
        ({"x": torch.zeros(5), "id": list("abcde"), "group": tuple(range(5))}, 5),
        (list("abcde"), 5),
        ((np.zeros((5, 2)), torch.zeros(5)), 5),
        ({"x": torch.zeros(5), "scale": torch.tensor(2.0), "epoch": 3, "split": "train", "mask": None}, 5),
        ((torch.zeros(1, 3), torch.zeros(1)), 1),
        ({"x": torch.zeros(0, 3), "id": []}, 0),
    ],
)
def test_the_number_of_records(batch: Any, size: int) -> None:
    assert batch_size(batch) == size


def test_records_stay_aligned_in_every_part() -> None:
    scale, example = torch.tensor(2.0), Example(torch.arange(5), list("abcde"), weight=0.5)
    batch = {"pair": pair(), "tags": tuple("vwxyz"), "array": np.arange(5), "epoch": 3, "scale": scale, "none": None}
    some = take({**batch, "example": example}, [3, 0, 3])
    assert isinstance(some["pair"], Pair)
    assert some["pair"].right.tolist() == [[6.0, 7.0], [0.0, 1.0], [6.0, 7.0]]
    assert (some["tags"], some["array"].tolist()) == (("y", "v", "y"), [3, 0, 3])
    assert (some["example"].image.tolist(), some["example"].names) == ([3, 0, 3], ["d", "a", "d"])
    assert (some["epoch"], some["none"], some["example"].weight) == (3, None, 0.5)
    assert some["scale"] is scale
    assert example.names == list("abcde"), "the batch itself is not changed"


@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda items: defaultdict(list, items)])
def test_mappings_keep_their_type(kind: Any) -> None:
    batch = kind({"x": torch.arange(4)})
    some = take(batch, [1])
    assert type(some) is type(batch)
    assert some["x"].tolist() == [1]
    assert batch["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("n", "size", "sizes"), [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 8, [3]), (0, 2, [])])
def test_microbatches_cover_the_batch_in_order(n: int, size: int, sizes: list[int]) -> None:
    found = list(microbatches({"x": torch.arange(n), "id": list(range(n))}, size))
    assert [batch_size(part) for part in found] == sizes
    assert [i for part in found for i in part["id"]] == list(range(n))
    assert [i for part in found for i in part["x"].tolist()] == list(range(n))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (3.0, "does not tell how many"),
        (torch.tensor(1.0), "does not tell how many"),
        ({}, "does not tell how many"),
        ((torch.zeros(4), torch.zeros(3)), r"batch\[0\] has 4, batch\[1\] has 3"),
        ({"x": torch.zeros(4), "size": (224, 224)}, r"batch\['x'\] has 4, batch\['size'\] has 2"),
        ({"x": torch.zeros(4), "graph": object()}, r"batch\['graph'\] is a object"),
        (pack_sequence([torch.zeros(2), torch.zeros(1)]), "Pack sequences inside training_step"),
    ],
)
def test_a_batch_without_a_clear_size_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        batch_size(batch)
    with pytest.raises(ConfigurationError, match="leading batch dimension"):
        take(batch, slice(0, 1))
