"""Whether two data sets hold the same records: by identity, through Subset, ConcatDataset and other wrappers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from lightning_gep.errors import ConfigurationError

MOST_RECORDS = 2**40
"""Of one data set: records of the next one are numbered from there."""


def share_records(first: Any, second: Any) -> bool:
    """Whether both hold a record of the same underlying data set, under the same index.

    Subset and ConcatDataset are followed exactly. Any other data set with a `dataset` in it is taken to have that
    one's records, in the same order if it is as long, else perhaps all of them. Two data sets that are made from the
    same files or tensors are different ones here.
    """
    known: dict[int, int] = {}
    return bool(np.intersect1d(_records(first, known), _records(second, known)).size)


def length(dataset: Any) -> int:
    """The number of records that can be read by index; 0 where it is not known."""
    return len(dataset) if hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset) else 0


def _records(dataset: Any, known: dict[int, int]) -> NDArray[np.int64]:
    """A number for each record, in the order of the data set; `known` has the data sets that were met, by identity."""
    if isinstance(dataset, Subset):
        return _chosen(_records(dataset.dataset, known), dataset)
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_records(part, known) for part in dataset.datasets])
    wrapped = getattr(dataset, "dataset", None)
    if isinstance(wrapped, Dataset):
        return _records(wrapped, known)
    place = known.setdefault(id(dataset), len(known))
    return place * MOST_RECORDS + np.arange(length(dataset))


def _chosen(records: NDArray[np.int64], subset: Subset[Any]) -> NDArray[np.int64]:
    whole = length(subset.dataset)
    if len(records) != whole:
        return records  # of a wrapper that changes how many there are: any of them may be meant
    indices = np.asarray(subset.indices, dtype=np.int64)
    outside = indices[(indices < -whole) | (indices >= whole)]
    if outside.size:
        raise ConfigurationError(
            f"A Subset has the index {outside[0]}, but its {type(subset.dataset).__name__} has {whole} records. Use "
            "indices below that, and give the data set a __len__ that counts its records."
        )
    return records[indices]
