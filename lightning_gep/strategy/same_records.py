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


def check_no_repeats(dataset: Any) -> None:
    """Raises ConfigurationError if the data set holds a record of an underlying data set under two indices.

    The guarantee is for one index: a record that has m of them could be drawn m times in a step, and ε would be that
    of m records. Subset, ConcatDataset and wrappers are followed as by `share_records`; a wrapper of another length is
    taken to hold the first records of what it wraps, and to begin again after the last. Equal content is no repeat.
    """
    _, counts = np.unique(_records(dataset, {}, as_long=True), return_counts=True)
    repeated = int(np.count_nonzero(counts > 1))
    if repeated:
        raise ConfigurationError(
            f"The training data holds {repeated} record{'s' * (repeated > 1)} more than once (up to {counts.max()} "
            "times). A step could draw all copies of a record, but the noise is made for one. Hold each record once: "
            "Subset(dataset, sorted(set(indices))), and no data set twice in a ConcatDataset. Weights belong into the "
            "loss, as a factor per record. If a data set of your own has records of its own (windows of a series, "
            "say), keep what it reads from under another name than `dataset`."
        )


def length(dataset: Any) -> int:
    """The number of records that can be read by index; 0 where it is not known."""
    return len(dataset) if hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset) else 0


def _records(dataset: Any, known: dict[int, int], *, as_long: bool = False) -> NDArray[np.int64]:
    """A number for each record, in the order of the data set; `known` has the data sets that were met, by identity.

    Of a wrapper that changes how many there are, all records that it wraps; `as_long` gives as many as it has instead.
    """
    if isinstance(dataset, Subset):
        return _chosen(_records(dataset.dataset, known, as_long=as_long), dataset)
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_records(part, known, as_long=as_long) for part in dataset.datasets])
    wrapped = getattr(dataset, "dataset", None)
    if isinstance(wrapped, Dataset) and (length(wrapped) or not as_long):
        records = _records(wrapped, known, as_long=as_long)
        return np.resize(records, length(dataset)) if as_long else records
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
