"""Public auxiliary data: where it is found, an endless stream of it, and a search for training records in it."""

import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader, Dataset

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, record_leaves, replace_leaves, take
from lightning_gep.gradients.mixing import RECORDS_TRIED, check_collate
from lightning_gep.strategy.refusals import check_same_structure
from lightning_gep.strategy.same_content import content_of, telling_digests
from lightning_gep.strategy.same_records import length, share_records

RECORDS_COMPARED = 2000
RECORDS_READ_AGAIN = 8
SECONDS_FOR_COMPARISON = 20.0
WHOLE_NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
MADE_UP = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool),
    *WHOLE_NUMBERS,
)
"""Types of tensors in whose place random values stand in."""


def find_public_loader(given: Any, datamodule: LightningDataModule | None, module: LightningModule) -> DataLoader[Any]:
    """The loader of public data: the one given, or from `aux_dataloader()` of the datamodule or the module."""
    if given is not None:
        loader = given() if callable(given) else given
    else:
        source: Any = next((s for s in (datamodule, module) if hasattr(s, "aux_dataloader")), None)
        if source is None:
            raise ConfigurationError(
                "There is no public auxiliary data: GEP takes its subspace from it. Give your datamodule a method "
                "aux_dataloader(), pass aux_dataloader=... to GEPStrategy, or use mechanism='gp', which needs none."
            )
        loader = source.aux_dataloader()
    if not isinstance(loader, DataLoader):
        raise ConfigurationError(
            f"aux_dataloader gave a {type(loader).__name__}. Return a torch.utils.data.DataLoader over public records."
        )
    return loader


class PublicStream:
    """Public batches without end, as many records at a time as are asked for."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self._iterator: Iterator[Any] | None = None

    def batches(self, records: int, *, restart: bool = False) -> Iterator[Any]:
        """Batches that hold `records` records together; the last is cut to fit. `restart` begins a new pass."""
        if restart:
            self._iterator = None
        while records > 0:
            batch = self._next()
            size = batch_size(batch)
            yield batch if size <= records else take(batch, slice(0, records))
            records -= size

    def _next(self) -> Any:
        if self._iterator is not None:
            for batch in self._iterator:
                return batch
        self._iterator = iter(self.loader)
        for batch in self._iterator:
            return batch
        raise ConfigurationError("The public auxiliary data is empty. aux_dataloader() has to give at least one batch.")


def stand_in_records(loader: DataLoader[Any]) -> list[Any]:
    """Records built like those of the training data, for checks where there is no public data.

    Floating-point values are random and whole numbers in tensors are drawn up to the largest of them, so that of the
    training data only its structure, and the range of its labels, is used; the outcome of the checks is all that
    remains of it.
    """
    return [_stand_in(loader.dataset[i % len(loader.dataset)]) for i in range(RECORDS_TRIED)]  # type: ignore[arg-type]


def stand_in_batch(loader: DataLoader[Any]) -> Any:
    """A batch built like a training batch, from such records."""
    batch = loader.collate_fn(stand_in_records(loader))
    # Once more: numbers that are in no tensor before they are collated, such as labels.
    return replace_leaves(batch, [_stand_in(leaf) for leaf in record_leaves(batch)])


def is_made_up(batch: Any) -> bool:
    """Whether such a batch holds no value of a training record, but for the range of whole numbers."""
    return all(isinstance(leaf, torch.Tensor) and leaf.dtype in MADE_UP for leaf in record_leaves(batch))


def _stand_in(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        try:
            return _stand_in(torch.from_numpy(np.ascontiguousarray(value))).numpy()
        except TypeError:  # of a type that torch does not know
            return value
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.bool:
            return torch.rand(value.shape) < 0.5
        if value.dtype in WHOLE_NUMBERS:
            return torch.randint_like(value, 0, max(0, int(value.max())) + 1) if value.numel() else value
        return torch.randn_like(value) if value.is_floating_point() or value.is_complex() else value
    if isinstance(value, Mapping):
        return {key: _stand_in(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_stand_in(part) for part in value)
    return value


@dataclass(frozen=True)
class PublicRecords:
    """What a privacy card says of public data. `sha256` is None where a hash would say nothing, and `note` says why."""

    name: str
    records: int | None
    hashed_records: int
    sha256: str | None
    note: str
    compared_records: int
    """The first records, which were compared by content with training records."""
    compared_with: str


def check_public_data(public: DataLoader[Any], private: DataLoader[Any]) -> PublicRecords:
    """Which records they are; raises ConfigurationError if they hold training records, or are built differently."""
    digests, compared_with = check_disjoint(public.dataset, private.dataset)
    check_collate(private, [public.dataset[i % len(public.dataset)] for i in range(RECORDS_TRIED)])  # type: ignore[arg-type]
    check_same_structure(next(PublicStream(public).batches(2)), private.collate_fn([private.dataset[0]]))
    return identify(public.dataset, digests, compared_with)


def check_disjoint(public: Dataset[Any], private: Dataset[Any]) -> tuple[list[bytes | None], str]:
    """Raises ConfigurationError if the public data is, contains, or shares records with the training data.

    The data sets are followed through Subset and ConcatDataset to the records they hold. Public records that are
    tensors, arrays, texts or plain values, in whatever structure, are also compared by content with the training
    records, labels apart. Returns the digests of the public inputs that were compared, in order, and what they were
    compared with, in words that also say where content proves nothing.
    """
    if share_records(public, private):
        raise ConfigurationError(
            "The auxiliary data contains training records (both draw on the same data set). Public data must share no "
            "record with the training data: use other images, e.g. ImageNet with random labels."
        )
    contents, stride = _contents(private)
    digests = []
    for i in range(min(length(public), RECORDS_COMPARED)):
        content = content_of(public[i])
        digests.append(content.input)
        if not contents.isdisjoint(content.digests):
            raise ConfigurationError(
                f"Auxiliary record {i} is a training record (the same content, labels apart). Public data must share "
                "no record with the training data: remove it, or use other public data."
            )
    compared_with = "all training records" if stride == 1 else f"one in {stride} training records"
    if not contents or None in contents or None in digests:
        compared_with += ", as far as records could be compared by content"
    changing = [name for name, data in (("training", private), ("public", public)) if _differs_when_read_again(data)]
    if changing:
        compared_with += (
            f", which proves nothing: {' and '.join(changing)} records differ from one reading to the next, as with "
            "random augmentation"
        )
    return digests, compared_with


def identify(dataset: Dataset[Any], digests: list[bytes | None], compared_with: str) -> PublicRecords:
    """Name, size and hash of a data set, from the digests of its first records in order.

    The hash is that of the inputs alone: neither labels drawn afresh nor the order of a shuffling loader change it.
    """
    sha256 = None
    if not digests:
        note = "no hash: the data set has no length"
    elif None in digests:
        note = "no hash: some records cannot be serialised"
    elif _differs_when_read_again(dataset):
        note = "no hash: a record differs from one reading to the next, as with random augmentation"
    else:
        sha256 = hashlib.sha256(b"".join(digest for digest in digests if digest is not None)).hexdigest()
        note = "inputs without labels, in the order of the data set"
    hashed = len(digests) if sha256 else 0
    return PublicRecords(_name(dataset), length(dataset) or None, hashed, sha256, note, len(digests), compared_with)


def _differs_when_read_again(dataset: Dataset[Any]) -> bool:
    first = range(min(length(dataset), RECORDS_READ_AGAIN))
    with torch.random.fork_rng(devices=[]):  # the random numbers of the training stay where they are
        return [content_of(dataset[i]).input for i in first] != [content_of(dataset[i]).input for i in first]


def _contents(dataset: Dataset[Any]) -> tuple[set[bytes | None], int]:
    """Digests of the records, and n: of every n-th where reading all would take too long, which is then said."""
    count = length(dataset)
    start = time.perf_counter()
    tried = [content_of(dataset[i]) for i in range(min(count, 100))]
    seconds = (time.perf_counter() - start) * count / max(1, len(tried))
    stride = math.ceil(seconds / SECONDS_FOR_COMPARISON) if seconds > SECONDS_FOR_COMPARISON else 1
    if stride > 1:
        rank_zero_warn(
            f"Reading all {count} training records to compare them with the auxiliary data would take about "
            f"{seconds:.0f} s; every {stride}th is compared. That they share no record is for you to know."
        )
    return telling_digests(content_of(dataset[i]) for i in range(0, count, stride)), stride


def _name(dataset: Any) -> str:
    """The classes of a data set and of those it wraps."""
    inner = getattr(dataset, "dataset", None)
    name = type(dataset).__name__
    return f"{name}({_name(inner)})" if isinstance(inner, Dataset) else name
