"""Whether two datasets overlap: by the identity of records, through wrappers of datasets, and by their content."""

import hashlib
import math
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import values_of
from lightning_gep.strategy.data import WithheldReads
from lightning_gep.strategy.persons import PerPerson

READ_TOGETHER = 100
MOST_RECORDS = 2**40
"""Of one dataset: those of the next one are numbered from there."""
AS_VARIED, AS_LARGE = 0.9, 0.5
"""A value identifies records if it is this varied, relative to the most varied value, and this large."""
PLAIN = {torch.Tensor, int, float}
"""Types of what most records hold."""
CHARACTERS = 4
"""Characters of a text that count as one element, so that a name or an id is smaller than the input beside it."""


def share_records(first: Any, second: Any) -> bool:
    """Whether both hold a record of the same underlying dataset, under the same index.

    Subset and ConcatDataset are followed exactly. Any other dataset with an attribute `dataset` is assumed to have the
    records of that one: in the same order if it is as long, else possibly all of them. Two datasets built from the same
    files or tensors count as different.
    """
    known: dict[int, int] = {}
    return bool(np.intersect1d(_records(first, known), _records(second, known)).size)


def check_no_repeats(dataset: Any) -> None:
    """Raises ConfigurationError if the dataset holds a record of an underlying dataset under two indices.

    The guarantee is for one index: a record with m of them could be drawn m times in a step, and ε would be that of m
    records. Wrappers are followed as by `share_records`; one of another length is assumed to hold the first records of
    what it wraps, and to start over after the last. Equal content is not a repeat.
    """
    _, counts = np.unique(_records(dataset, {}, as_long=True), return_counts=True)
    repeated = int(np.count_nonzero(counts > 1))
    if repeated:
        raise ConfigurationError(
            f"The training data holds {repeated} record{'s' * (repeated > 1)} more than once (up to {counts.max()} "
            "times). A step could draw all copies of a record, but the noise covers one. Hold each record once: "
            "Subset(dataset, sorted(set(indices))), and no dataset twice in a ConcatDataset. Put weights into the "
            "loss, as a factor per record. If your own dataset computes its records from another one (windows of a "
            "series, for example), store that one under another name than `dataset`."
        )


def length(dataset: Any) -> int:
    """The number of records that can be read by index; 0 if unknown."""
    return len(dataset) if hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset) else 0


def read_records(dataset: Any, indices: Sequence[int]) -> Iterator[Any]:
    """The records at these indices, read as a DataLoader reads them: many at a time where the dataset can."""
    several = getattr(dataset, "__getitems__", None) or (lambda block: [dataset[index] for index in block])
    for start in range(0, len(indices), READ_TOGETHER):
        yield from several(list(indices[start : start + READ_TOGETHER]))


def _records(dataset: Any, known: dict[int, int], *, as_long: bool = False) -> NDArray[np.int64]:
    """A number for each record, in the order of the dataset; `known` numbers the datasets met so far by their id.

    A wrapper of another length gives all records that it wraps, or with `as_long` as many as its length.
    """
    if isinstance(dataset, Subset):
        return _chosen(_records(dataset.dataset, known, as_long=as_long), dataset)
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_records(part, known, as_long=as_long) for part in dataset.datasets])
    wrapped = getattr(dataset, "dataset", None)
    wraps = isinstance(dataset, WithheldReads | PerPerson) or isinstance(wrapped, Dataset)
    if wraps and (length(wrapped) or not as_long):
        records = _records(wrapped, known, as_long=as_long)
        return np.resize(records, length(dataset)) if as_long else records
    place = known.setdefault(id(dataset), len(known))
    return place * MOST_RECORDS + np.arange(length(dataset))


def _chosen(records: NDArray[np.int64], subset: Subset[Any]) -> NDArray[np.int64]:
    whole = length(subset.dataset)
    if len(records) != whole:
        return records  # of a wrapper of another length: any of them may be meant
    indices = np.asarray(subset.indices, dtype=np.int64)
    outside = indices[(indices < -whole) | (indices >= whole)]
    if outside.size:
        raise ConfigurationError(
            f"A Subset has the index {outside[0]}, but its {type(subset.dataset).__name__} has {whole} records. Use "
            "smaller indices, and make sure that __len__ of the dataset counts its records."
        )
    return records[indices]


MANY_BITS = 40.0
"""Values with fewer bits may agree by chance: 2000 public and a million training records do so twice in 2 ** 30."""
BY_CHANCE = 5.0
"""How many times more often than training records among themselves public ones may agree with them by chance."""


class Part(NamedTuple):
    """A value of a record: its position, number of elements, the most bits it can have, and its digest."""

    position: int
    size: int
    bits: float
    digest: bytes


class Content(NamedTuple):
    """What a record holds, bit for bit: the same numbers in another type are other content."""

    input: bytes | None
    """Digest of the first entry of a tuple or list, else of the largest values; None if they cannot be serialised."""
    parts: tuple[Part, ...]
    """The values with several elements, except masks. In a record of few bits, such as single numbers: all values but
    one, for each that may be the label."""

    @property
    def digests(self) -> set[bytes | None]:
        """Those of the parts, or else that of the input."""
        return {part.digest for part in self.parts} or {self.input} - {None}


def content_of(record: Any) -> Content:
    """The digests of a record."""
    try:
        return _content(record)
    except Exception:  # datasets may hold anything; what cannot be taken apart is compared as a whole
        return Content(_digest(record), ())


@dataclass(frozen=True)
class Distinctive:
    """What identifies the records of a dataset: a record with one of the digests has the content of one of them."""

    digests: set[bytes | None]
    repeated: float
    """The share of records that repeat a digest, if values have few bits; 0 if they cannot agree by chance."""
    incomparable: bool
    """Whether some record could not be compared."""

    def by_chance(self, records: int) -> float:
        """How many of so many other records may have one of the digests without being one of these."""
        return BY_CHANCE * self.repeated * records


def distinctive(contents: Iterable[Content]) -> Distinctive:
    """What identifies these records.

    Labels, ids, masks and positions agree in many records, so not every value counts. Those count that are about as
    varied as the most varied value and not much smaller than the largest of these. Values of few bits, such as a few
    categories, count only where there are no others.
    """
    values: dict[int, set[bytes]] = defaultdict(set)
    sizes: dict[int, int] = defaultdict(int)
    bits: dict[int, float] = defaultdict(float)
    inputs: set[bytes | None] = set()
    count = 0
    for content in contents:
        count += 1
        if not content.parts:
            inputs.add(content.input)
        for part in content.parts:
            values[part.position].add(part.digest)
            sizes[part.position] += part.size
            bits[part.position] = max(bits[part.position], part.bits)
    most = AS_VARIED * max(map(len, values.values()), default=0)
    varied = [position for position, digests in values.items() if len(digests) >= most]
    largest = max((sizes[position] for position in varied), default=0)
    chosen = [position for position in varied if sizes[position] >= AS_LARGE * largest]
    many = [position for position in chosen if bits[position] >= MANY_BITS]
    digests = set[bytes | None]().union(*(values[position] for position in many or chosen))
    repeated = 0.0 if many else sum(1 - len(values[position]) / count for position in chosen)
    return Distinctive(digests | (inputs - {None}), repeated, not count or None in inputs)


def _content(record: Any) -> Content:
    kinds = {*map(type, record)} if type(record) in (tuple, list) else {int}
    plain = kinds <= PLAIN and kinds != {int}  # whole numbers alone are one value, such as tokens
    values = list(record) if plain else values_of(record)  # which is slower
    large = {position: value for position, value in enumerate(values) if _size(value) > 1}
    several = {position: value for position, value in large.items() if not _is_mask(value)}
    if not any(_bits(value) >= MANY_BITS for value in several.values()) and len(values) > 1:
        several = {i: values[:i] + values[i + 1 :] for i in range(len(values))}
    parts = tuple(Part(i, _size(v), _bits(v), found) for i, v in several.items() if (found := _digest(v)))
    known = {id(several[part.position]): part.digest for part in parts}
    if isinstance(record, tuple | list) and record and (_size(record[0]) > 1 or not large):
        return Content(known.get(id(record[0])) or _digest(record[0]), parts)
    most = max(map(_size, large.values()), default=0)
    largest = [value for value in large.values() if _size(value) >= AS_LARGE * most]
    alone = largest[0] if len(largest) == 1 else largest or record
    return Content(known.get(id(alone)) or _digest(alone), parts)


def _digest(value: Any) -> bytes | None:
    try:
        return hashlib.blake2b(_serialised(value), digest_size=16).digest()
    except Exception:  # what cannot be serialised cannot be compared
        return None


def _serialised(value: Any) -> bytes:
    """The value as bytes that are the same in every process: a pickled tensor contains the address of its storage."""
    if isinstance(value, torch.Tensor):
        return _framed(_type_and_shape(value.dtype, value.shape), _array(value).tobytes())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _framed(f"{value.dtype.str}{value.shape}".encode(), value.tobytes())
    if isinstance(value, Mapping):
        return _framed(*(_serialised(part) for key in sorted(value, key=str) for part in (str(key), value[key])))
    if isinstance(value, list | tuple):
        return _framed(*(_serialised(part) for part in value))
    return pickle.dumps(value, protocol=4)


@lru_cache  # most records have the same
def _type_and_shape(dtype: torch.dtype, shape: torch.Size) -> bytes:
    return str((dtype, *shape)).encode()


def _array(values: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    """The same as an array of NumPy, whose functions take a fraction of the time on single records."""
    if isinstance(values, np.ndarray):
        return values
    try:
        return values.numpy(force=True)
    except TypeError:  # a type that NumPy does not have
        return values.float().numpy(force=True)


def _framed(*parts: bytes) -> bytes:
    """The parts in a row, each after its length, so that different lists give different bytes."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _size(value: Any) -> int:
    """Number of elements or words; for other objects, such as an image of Pillow, number of bytes."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if value is None or isinstance(value, int | float | complex):
        return 1
    if isinstance(value, np.ndarray | np.generic):
        return value.size
    if isinstance(value, str | bytes):
        return len(value) // CHARACTERS
    if isinstance(value, list | tuple | Mapping):
        return len(value)
    try:
        return len(_serialised(value))
    except Exception:
        return 1


def _bits(value: Any) -> float:
    """The most bits that a value can have, by the range of its elements if they are whole numbers."""
    if isinstance(value, int | float):  # the quick way for tables
        return math.log2(1 + abs(value)) if value == value // 1 and abs(value) < math.inf else math.inf
    size = _size(value)
    if isinstance(value, list) and size < MANY_BITS:
        return sum(map(_bits, value))
    if size >= MANY_BITS or isinstance(value, str | bytes):
        return float(8 * CHARACTERS * size)
    try:
        numbers = np.asarray(value, dtype=np.float64).reshape(-1)
        if not np.array_equal(numbers, np.round(numbers)):
            return math.inf
        return float(np.log2(1 + np.abs(numbers).max()) * size)
    except Exception:  # not numbers
        return math.inf


def _is_mask(value: Any) -> bool:
    """Whether at most two values occur in it: masks agree in many records."""
    if isinstance(value, torch.Tensor | np.ndarray):
        flat = _array(value).ravel()
        # Looking at a few from all over it is faster and usually enough.
        if len(set(flat[:: len(flat) // 32 + 1].tolist())) > 2:
            return False
        others = flat[flat != flat[0]]
        return not len(others) or bool((others == others[0]).all())
    return isinstance(value, list | tuple) and len(set(value)) <= 2  # tokens that are in no tensor yet
