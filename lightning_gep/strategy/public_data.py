"""Public data: where it is found, an endless stream of it, and its overlap with the training data."""

import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader, Dataset

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.withheld import withheld
from lightning_gep.strategy.contents import Distinctive, Part, distinctive, input_of, parts_of
from lightning_gep.strategy.logs import progress_bar
from lightning_gep.strategy.overlap import length, read_records, share_records
from lightning_gep.strategy.refusals import check_same_structure

FEW_BITS = (
    "records have so few bits that public ones may have the content of training records by chance; not more do than "
    "repeats among the training records explain"
)
BY_CHANCE = 5.0
"""How many times more often than training records among themselves public ones may agree with them by chance."""
CHANGE = "differ from one reading to the next, as with random augmentation"
RECORDS_COMPARED, RECORDS_READ_TWICE, RECORDS_TIMED = 2000, 8, 100
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
        self.restart()

    def restart(self) -> None:
        """Begin a new pass with the next batch."""
        self._batches = self._endless()

    def records(self, count: int) -> list[Any]:
        """The first records, repeated if there are fewer."""
        data: Any = self.loader.dataset
        return [data[i % len(data)] for i in range(count)]

    def batches(self, records: int) -> Iterator[Any]:
        """Batches with a total of `records` records; the last is cut to fit."""
        while records > 0:
            batch = next(self._batches)
            size = batch_size(batch)
            yield batch if size <= records else take(batch, slice(0, records))
            records -= size

    def _endless(self) -> Iterator[Any]:
        while True:
            batch = None
            for batch in self.loader:
                yield batch
            if batch is None:
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
    records = [parts_of(record) for record in read_records(public, range(min(length(public), RECORDS_COMPARED)))]
    inputs = [input_of(parts) for parts in records]
    changes = _changes_between_reads(public)
    agree = ""
    if trusted:
        compared_with = "no training record: public_data_is_disjoint=True states that they differ"
    else:
        known, stride = _identified(private)
        _check_contents(records, known)
        agree = FEW_BITS if known.repeated else ""
        compared_with = "all training records" if stride == 1 else f"one in {stride} training records"
        if known.incomparable or None in inputs:
            compared_with += ", as far as records could be compared by content"
        changing = ["training"] * _changes_between_reads(private) + ["public"] * changes
        if changing:
            compared_with += f", which proves nothing: {' and '.join(changing)} records {CHANGE}"
    if agree:
        rank_zero_warn(f"Public data: {agree}. Ensuring that it does not overlap is your responsibility.")
    sha256, note = _hash(inputs, changes)
    hashed = len(inputs) if sha256 else 0
    size = length(public) or None
    return PublicRecords(_name(public), size, hashed, sha256, note, len(inputs), compared_with, agree)


def _check_contents(records: list[list[Part]], known: Distinctive) -> None:
    same = [i for i, parts in enumerate(records) if not known.digests.isdisjoint(part.digest for part in parts)]
    if len(same) > BY_CHANCE * known.repeated * len(records):
        raise ConfigurationError(
            f"Public record {same[0]} is a training record (same content, labels aside): {len(same)} of the first "
            f"{len(records)} public records have the content of one. Public and training data must not overlap: remove "
            "them, or use other public data. If they are different records that happen to be equal, state it with "
            "public_data_is_disjoint=True; the privacy card shows it.",
            setting="aux_dataloader",
        )


def _hash(inputs: list[bytes | None], changes: bool) -> tuple[str | None, str]:
    """The hash of a dataset, and what it covers: inputs only, so fresh labels and shuffling do not change it."""
    if not inputs:
        return None, "no hash: the dataset has no length"
    if None in inputs:
        return None, "no hash: some records cannot be serialised"
    if changes:
        return None, "no hash: a record differs from one reading to the next, as with random augmentation"
    known = b"".join(digest for digest in inputs if digest is not None)
    return hashlib.sha256(known).hexdigest(), "inputs without labels, in the order of the dataset"


def _changes_between_reads(dataset: Dataset[Any]) -> bool:
    first = range(min(length(dataset), RECORDS_READ_TWICE))
    with torch.random.fork_rng(devices=[]):  # training goes on with the random numbers it had
        once, again = ([input_of(parts_of(dataset[i])) for i in first] for _ in range(2))
    return once != again


def _identified(dataset: Dataset[Any]) -> tuple[Distinctive, int]:
    """What identifies every n-th record, and n, which is 1 unless reading all records would take too long."""
    count = length(dataset)
    tried = range(min(count, RECORDS_TIMED))
    start = time.perf_counter()
    distinctive(map(parts_of, read_records(dataset, tried)))
    seconds = (time.perf_counter() - start) * count / max(1, len(tried))
    stride = max(1, math.ceil(seconds / SECONDS_FOR_COMPARISON))
    if stride > 1:
        rank_zero_warn(
            f"Comparing all {count} training records with the public data would take about {seconds:.0f} s, so only "
            f"every {stride}th is compared. Ensuring that public and training data do not overlap is your "
            "responsibility. If you are sure of it, public_data_is_disjoint=True skips the comparison."
        )
    with progress_bar("Comparing training records with the public data", -(-count // stride)) as bar:
        records = read_records(dataset, range(0, count, stride))
        return distinctive((bar.update(), parts_of(record))[1] for record in records), stride


def _name(dataset: Any) -> str:
    """The class of a dataset and of those it wraps."""
    inner = getattr(dataset, "dataset", None)
    name = type(dataset).__name__
    return f"{name}({_name(inner)})" if isinstance(inner, Dataset) else name
