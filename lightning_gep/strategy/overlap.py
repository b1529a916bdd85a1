"""Whether two datasets overlap: by the identity of records, through wrappers of datasets."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy.data import Records, read
from lightning_gep.strategy.persons import PerPerson

READ_TOGETHER = 100
MOST_RECORDS = 2**40
"""Of one dataset: those of the next one are numbered from there."""


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
    for start in range(0, len(indices), READ_TOGETHER):
        yield from read(dataset, list(indices[start : start + READ_TOGETHER]))


def _records(dataset: Any, known: dict[int, int], *, as_long: bool = False) -> NDArray[np.int64]:
    """A number for each record, in the order of the dataset; `known` numbers the datasets met so far by their id.

    A wrapper of another length gives all records that it wraps, or with `as_long` as many as its length.
    """
    if isinstance(dataset, Subset):
        return _chosen(_records(dataset.dataset, known, as_long=as_long), dataset)
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_records(part, known, as_long=as_long) for part in dataset.datasets])
    wrapped = getattr(dataset, "dataset", None)
    wraps = isinstance(dataset, Records | PerPerson) or isinstance(wrapped, Dataset)
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
