"""Privacy for persons with several records: a dataset of persons, and batches that keep each person's records together.

Why one clip per person is enough: everything between the data and the clip is a function of one person's own records.
They are collated and moved to the device by themselves (`Persons`), so no collate function and no hook can pass a
record on to another person; the loss of a person is that of training_step on these records, so its gradient is one row,
kept apart from others by the backends that keep records apart; and that row is clipped. Adding or removing a person
with any number of records changes the sum by one clipped row. Persons are drawn by Poisson sampling as records are, and
which of their records are read is drawn for each person independently. So a step is the same subsampled Gaussian, with
N the number of persons.
"""

import pickle
from collections.abc import Callable, Hashable
from operator import itemgetter
from random import SystemRandom
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, constants, joined, record_leaves, replace_leaves, take
from lightning_gep.gradients.snapshot import same_value


class PerPerson(Dataset[Any]):
    """A training dataset whose items are persons, so that the (ε, δ) guarantee is for a person with all their records.

    Give it to the train loader; batch_size is then the expected number of *persons* of a step, and N their number. A
    person who is drawn contributes the mean gradient of `records` of their records, clipped as one: chosen anew at
    every step, none more than once more often than another. Persons may have any number of records; the cost of a step
    depends on `records` alone. Public data stays as it is: `records` public records at a time stand for a person.

    Args:
        dataset: The records, with a length. It is read once, to see whose each record is.
        unit: The key or position of a record's entry that tells whose it is, such as "user_id", or a function of the
            record. Two spellings of a name are two persons.
        records: How many records a person contributes to a step. Default 1. More give a gradient with less variance
            and cost as much time as that many records.

    Raises:
        ConfigurationError: If a record does not tell whose it is: an entry that is missing, None or NaN.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from lightning_gep import PerPerson
        >>> notes = [{"user_id": i % 3, "x": float(i)} for i in range(9)]
        >>> len(PerPerson(notes, unit="user_id", records=2))
        3

    """

    def __init__(self, dataset: Any, unit: str | int | Callable[[Any], Hashable], records: int = 1) -> None:
        self.dataset = dataset
        self.records = positive_integer(
            "records", records, "It is the number of records a person contributes to a step."
        )
        self.unit = getattr(unit, "__name__", str(unit))
        """The name of what tells persons apart, for the card."""
        self._owner: Any = unit if callable(unit) else itemgetter(unit)
        owned: dict[Hashable, list[int]] = {}
        for index in range(len(dataset)):
            owned.setdefault(self._person(dataset[index], index), []).append(index)
        self._persons, self._owned = frozenset(owned), list(owned.values())

    def __len__(self) -> int:
        return len(self._owned)

    def __getitem__(self, index: int) -> list[Any]:
        own = self._owned[index]
        # Not from torch's generator: with a known seed, one person more would change what is read of all that follow.
        order = SystemRandom().sample(range(len(own)), len(own))
        return [self.dataset[own[order[i % len(own)]]] for i in range(self.records)]

    def __getstate__(self) -> dict[str, Any]:
        """Workers only read, so a function that tells whose a record is may be one that cannot be pickled."""
        try:
            pickle.dumps(self._owner)
        except Exception:
            return {**vars(self), "_owner": None}
        return vars(self)

    def shares_persons(self, records: Any) -> bool:
        """Whether some of these records are of one of the persons, as far as they tell whose they are."""
        records = records.dataset if isinstance(records, PerPerson) else records
        try:
            return any(self._person(records[i], i) in self._persons for i in range(len(records)))
        except ConfigurationError:
            return False

    def _person(self, record: Any, index: int) -> Hashable:
        try:
            value = self._owner(record)
            person: Hashable = value.item() if hasattr(value, "item") else value
        except Exception as error:
            raise ConfigurationError(
                f"unit={self.unit!r} does not tell whose record {index} is ({type(error).__name__}). Give the key of "
                "an entry with one plain value, or a function of the record that returns one."
            ) from None  # whose text may be a name
        # NaN and most objects equal nothing but themselves: each would be a person, and a person could have many.
        if not isinstance(person, str | bytes | int | float) or person != person:
            raise ConfigurationError(
                f"unit={self.unit!r} of record {index} is no name or number ({type(person).__name__}, or NaN). Leave "
                "out records of nobody, and turn other types into str."
            )
        return person


class Persons:
    """The batches of the persons of a step, each collated by itself."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def each(self, function: Callable[[Any], Any]) -> "Persons":
        """The same persons after something was done to the batch of each."""
        return Persons([function(batch) for batch in self.batches])

    def nested(self) -> Any:
        """One batch whose entries are persons: every tensor has a dimension for persons and one for their records."""
        if not all(isinstance(leaf, Tensor) for batch in self.batches for leaf in record_leaves(batch)):
            raise ConfigurationError(
                "PerPerson needs batches of tensors. Turn other entries into numbers in the dataset."
            )
        first, *others = map(constants, self.batches)
        if not all(same_value(other, first) for other in others):  # the first person's value would be used for all
            raise ConfigurationError("A collate function or hook adds a value that depends on the records of a batch.")
        return joined(self.batches, torch.stack)


def check_not_inside(dataset: Any) -> None:
    """Raises ConfigurationError for persons inside of another dataset, which may hold one of them twice."""
    for part in dataset.datasets if isinstance(dataset, ConcatDataset) else [getattr(dataset, "dataset", None)]:
        if isinstance(part, PerPerson):
            raise ConfigurationError(
                f"The training data is a {type(dataset).__name__} of PerPerson, in which a person could be twice. Put "
                "PerPerson outside, as in PerPerson(Subset(records, indices), ...); split by person first."
            )
        if part is not None:
            check_not_inside(part)


def single_records(loader: DataLoader[Any]) -> Any:
    """The dataset of single records behind a train loader."""
    return loader.dataset.dataset if isinstance(loader.dataset, PerPerson) else loader.dataset


def made_of_public(batch: Any, records: int) -> Any:
    """A batch of as many made-up persons as it has records: each is a record and those that follow it."""
    size = batch_size(batch)
    rows = take(batch, [(person + i) % size for person in range(size) for i in range(records)])
    return replace_leaves(rows, [leaf.unflatten(0, (size, records)) for leaf in record_leaves(rows)])


def of_all_persons(batch: Any) -> Any:
    """The records of a nested batch as training_step gets them."""
    return replace_leaves(batch, [leaf.flatten(0, 1) for leaf in record_leaves(batch)])
