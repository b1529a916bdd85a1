"""Public data: where it is found, an endless stream of it, and its overlap with the training data."""

import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader, Dataset

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.withheld import withheld
from lightning_gep.strategy.logs import SECONDS_UNNOTICED, progress_bar
from lightning_gep.strategy.overlap import Distinctive, content_of, distinctive, length, read_records, share_records
from lightning_gep.strategy.refusals import check_same_structure

FEW_BITS = (
    "records have so few bits that public ones may have the content of training records by chance; not more do than "
    "repeats among the training records explain"
)
RECORDS_COMPARED = 2000
RECORDS_READ_TWICE = 8
SECONDS_FOR_COMPARISON = 20.0


def find_public_loader(given: Any, datamodule: LightningDataModule | None, module: LightningModule) -> DataLoader[Any]:
    """The loader of public data: the one given, or from `aux_dataloader()` of the datamodule or the module."""
    if given is not None:
        loader = given() if callable(given) else given
    else:
        source: Any = next((s for s in (datamodule, module) if hasattr(s, "aux_dataloader")), None)
        if source is None:
            raise ConfigurationError(
                "There is no public data, which GEP computes its subspace from. Add a method aux_dataloader() to your "
                "datamodule, pass aux_dataloader=... to GEPStrategy, or use mechanism='gp', which needs none.",
                setting="aux_dataloader",
            )
        loader = source.aux_dataloader()
    if not isinstance(loader, DataLoader):
        raise ConfigurationError(
            f"aux_dataloader returned a {type(loader).__name__}. Return a torch.utils.data.DataLoader.",
            setting="aux_dataloader",
        )
    return loader


class PublicStream:
    """Public batches without end, as many records at a time as are asked for."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self._iterator: Iterator[Any] | None = None

    def records(self, count: int) -> list[Any]:
        """The first records, repeated if there are fewer."""
        data: Any = self.loader.dataset
        return [data[i % len(data)] for i in range(count)]

    def batches(self, records: int, *, restart: bool = False) -> Iterator[Any]:
        """Batches with a total of `records` records; the last is cut to fit. `restart` begins a new pass."""
        if restart:
            self.restart()
        while records > 0:
            batch = self._next()
            size = batch_size(batch)
            yield batch if size <= records else take(batch, slice(0, records))
            records -= size

    def restart(self) -> None:
        """Begin a new pass with the next batch."""
        self._iterator = None

    def _next(self) -> Any:
        if self._iterator is not None:
            for batch in self._iterator:
                return batch
        self._iterator = iter(self.loader)
        for batch in self._iterator:
            return batch
        raise ConfigurationError("The public data is empty: aux_dataloader() has to give at least one batch.")


@dataclass(frozen=True)
class PublicRecords:
    """What a privacy card says about public data. `sha256` is None where a hash would say nothing; `note` says why."""

    name: str
    records: int | None
    hashed_records: int
    sha256: str | None
    note: str
    compared_records: int
    """The first records, which were compared by content with training records."""
    compared_with: str
    agree: str = ""
    """Said instead where contents cannot tell records apart. How many are equal depends on single training records."""


def check_public_data(
    public: DataLoader[Any], private: DataLoader[Any], *, trusted: bool = False, reveal_errors: bool = False
) -> PublicRecords:
    """The identity of the public data; raises ConfigurationError if it overlaps or does not match the training data."""
    found = check_disjoint(public.dataset, private.dataset, trusted=trusted)
    record = private.dataset[0]
    batch = withheld(lambda: private.collate_fn([record]), "The collate function", reveal=reveal_errors)
    check_same_structure(next(PublicStream(public).batches(2)), batch)
    return found


def check_disjoint(public: Dataset[Any], private: Dataset[Any], *, trusted: bool = False) -> PublicRecords:
    """The identity of the public data; raises ConfigurationError if it overlaps with the training data.

    Datasets are followed through Subset and ConcatDataset to the records they hold. Records that consist of tensors,
    arrays, texts or plain values, in any structure, are also compared by content, labels aside, unless the user is
    `trusted` to have made sure that they differ.
    """
    if share_records(public, private):
        raise ConfigurationError(
            "The public data contains training records (both draw on the same dataset). Public and training data must "
            "not overlap: use other data, such as ImageNet images with random labels.",
            setting="aux_dataloader",
        )
    contents = [*map(content_of, read_records(public, range(min(length(public), RECORDS_COMPARED))))]
    digests = [content.input for content in contents]
    changes = _changes_between_reads(public)
    if trusted:
        said = "no training record: public_data_is_disjoint=True states that they differ"
        return _identity(public, digests, changes, said)
    known, stride = _contents(private)
    same = [i for i, content in enumerate(contents) if not known.digests.isdisjoint(content.digests)]
    if len(same) > known.by_chance(len(digests)):
        raise ConfigurationError(
            f"Public record {same[0]} is a training record (same content, labels aside): {len(same)} of the first "
            f"{len(digests)} public records have the content of one. Public and training data must not overlap: remove "
            "them, or use other public data. If they are different records that happen to be equal, state it with "
            "public_data_is_disjoint=True; the privacy card shows it.",
            setting="aux_dataloader",
        )
    agree = FEW_BITS if known.repeated else ""
    if agree:
        rank_zero_warn(f"Public data: {agree}. Ensuring that it does not overlap is your responsibility.")
    compared_with = "all training records" if stride == 1 else f"one in {stride} training records"
    if known.incomparable or None in digests:
        compared_with += ", as far as records could be compared by content"
    changing = ["training"] * _changes_between_reads(private) + ["public"] * changes
    if changing:
        compared_with += (
            f", which proves nothing: {' and '.join(changing)} records differ from one reading to the next, as with "
            "random augmentation"
        )
    return _identity(public, digests, changes, compared_with, agree)


def _identity(
    dataset: Dataset[Any], digests: list[bytes | None], changes: bool, compared_with: str, agree: str = ""
) -> PublicRecords:
    """Name, size and hash of a dataset. The hash covers inputs only, so fresh labels and shuffling do not change it."""
    sha256 = None
    if not digests:
        note = "no hash: the dataset has no length"
    elif None in digests:
        note = "no hash: some records cannot be serialised"
    elif changes:
        note = "no hash: a record differs from one reading to the next, as with random augmentation"
    else:
        sha256 = hashlib.sha256(b"".join(digest for digest in digests if digest is not None)).hexdigest()
        note = "inputs without labels, in the order of the dataset"
    hashed = len(digests) if sha256 else 0
    return PublicRecords(
        _name(dataset), length(dataset) or None, hashed, sha256, note, len(digests), compared_with, agree
    )


def _changes_between_reads(dataset: Dataset[Any]) -> bool:
    first = range(min(length(dataset), RECORDS_READ_TWICE))
    with torch.random.fork_rng(devices=[]):  # training goes on with the random numbers it had
        return [content_of(dataset[i]).input for i in first] != [content_of(dataset[i]).input for i in first]


def _contents(dataset: Dataset[Any]) -> tuple[Distinctive, int]:
    """What identifies every n-th record, and n, which is 1 unless reading all records would take too long."""
    count = length(dataset)
    start = time.perf_counter()
    tried = [*map(content_of, read_records(dataset, range(min(count, 100))))]
    seconds = (time.perf_counter() - start) * count / max(1, len(tried))
    stride = math.ceil(seconds / SECONDS_FOR_COMPARISON) if seconds > SECONDS_FOR_COMPARISON else 1
    if stride > 1:
        rank_zero_warn(
            f"Comparing all {count} training records with the public data would take about {seconds:.0f} s, so only "
            f"every {stride}th is compared. Ensuring that public and training data do not overlap is your "
            "responsibility."
        )
    elif seconds > SECONDS_UNNOTICED:
        rank_zero_info(
            f"Comparing {count} training records with the public data, about {seconds:.0f} s. If you are sure they "
            "do not overlap, public_data_is_disjoint=True skips it."
        )
    with progress_bar("Comparing training records with the public data", -(-count // stride)) as bar:
        records = read_records(dataset, range(0, count, stride))
        return distinctive((bar.update(), content_of(record))[1] for record in records), stride


def _name(dataset: Any) -> str:
    """The class of a dataset and of those it wraps."""
    inner = getattr(dataset, "dataset", None)
    name = type(dataset).__name__
    return f"{name}({_name(inner)})" if isinstance(inner, Dataset) else name
