"""No record may change another on its way into a batch: collate functions and Lightning's transfer hooks are tried."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, constants, record_leaves, take
from lightning_gep.gradients.extremes import extreme_batches, extreme_records, shorter_records
from lightning_gep.gradients.randomness import random_state_kept, seeded
from lightning_gep.gradients.state import SavedState, noted_traces, untouched

RECORDS_NEEDED, RECORDS_TRIED = 4, 8
SEEDS = range(64)
"""A mixing that happens to a batch with probability 0.1 is missed by all of them in one case of a thousand."""
HOOKS = "on_before_batch_transfer, transfer_batch_to_device or on_after_batch_transfer"

Make = Callable[[list[int]], Any]
"""Positions of records → their batch."""


def check_collate(loader: DataLoader[Any], records: Sequence[Any]) -> None:
    """Raises ConfigurationError if the collate function mixes records, tried on these."""
    if loader.collate_fn is default_collate:
        return

    def collated(positions: list[int], records: Sequence[Any] = records) -> Any:
        try:
            # Copies: some collate functions take records apart.
            return loader.collate_fn([copy.deepcopy(records[i]) for i in positions])
        except Exception as error:
            raise ConfigurationError(
                f"The train loader's collate function does not accept the public records "
                f"({type(error).__name__}: {error}). Give the auxiliary data the structure of the training data."
            ) from error

    extremes = (partial(collated, records=changed) for changed in _with_an_extreme(records))
    if mixes(collated, len(records)) or extremes_mix(extremes, len(records)):
        raise ConfigurationError(
            "The train loader's collate function mixes records (like MixUp or CutMix, or by padding them to the "
            "longest of the batch, or by random numbers whose count depends on a record): one record would change the "
            "gradients of others. Move it before batching, within each record, pad all records to the same length, or "
            "remove it."
        )


def check_transfer(module: nn.Module, batch: Any, transferred: Callable[[Any], Any]) -> None:
    """Raises ConfigurationError if what happens to a batch before training_step sees it mixes or keeps its records."""
    if batch_size(batch) < RECORDS_NEEDED:
        raise ConfigurationError(
            f"The public batch has {batch_size(batch)} records; checking takes {RECORDS_NEEDED} at least. Use a larger "
            "batch size for the auxiliary data."
        )
    with untouched(module), noted_traces(module) as kept:
        before = SavedState(module)
        available = min(RECORDS_TRIED, batch_size(batch))

        def taken(positions: list[int], batch: Any = batch) -> Any:
            return transferred(take(batch, positions))

        extremes = (partial(taken, batch=extreme) for extreme in extreme_batches(batch, row=available // 2))
        mixed = mixes(taken, available) or extremes_mix(extremes, available)
        changed = before.changes()
    if mixed:
        raise ConfigurationError(
            f"{HOOKS} mixes records (MixUp, CutMix or statistics of the batch): one record would be in several "
            "gradients. Do it within each record, or remove it."
        )
    if changed:
        raise ConfigurationError(
            f"{HOOKS} changes {', '.join(changed)}: what it computes there from the records would be released without "
            "noise. Remove it."
        )
    if kept:
        raise ConfigurationError(
            f"{HOOKS} sets {', '.join(kept)} of the module, by which records could reach the gradients of others. Hand "
            "it on in the batch, a value for each record, or remove it."
        )


def mixes(make: Make, available: int) -> bool:
    """Whether replacing one of the records changes another's row, or what belongs to all, with some random numbers."""
    size = available // 2
    with random_state_kept():
        return any(_mixes_at(seed % size, seeded(make, seed), size) for seed in SEEDS)


def extremes_mix(makes: Iterable[Make], available: int) -> bool:
    """Like `mixes`, with an extreme value in the first record of the second half, a different one per `makes`."""

    def if_it_runs(make: Make) -> bool:
        try:
            return _mixes_at(0, seeded(make, SEEDS[0]), available // 2)
        except Exception:  # code need not be made for such records: what it raises ends a training
            return False

    with random_state_kept():
        return any(if_it_runs(make) for make in makes)


def _with_an_extreme(records: Sequence[Any]) -> Iterator[list[Any]]:
    """The records, of which the first of the second half has an extreme value, or is longer than all others."""
    half = len(records) // 2
    for extreme in extreme_records(records[half]):
        yield [*records[:half], extreme, *records[half + 1 :]]
    for shorter in zip(*map(shorter_records, records), strict=False):
        yield [*shorter[:half], records[half], *shorter[half + 1 :]]


def _mixes_at(place: int, make: Make, size: int) -> bool:
    """Whether replacing the record at a place, by one of the second half, changes what the batch holds of others."""
    plain = list(range(size))
    others = [i for i in plain if i != place]
    before, after = make(plain), make([size + place if i == place else i for i in plain])
    # A record may be left out because of what it holds itself.
    where = {size: others, size - 1: plain[:-1]}.get(batch_size(after))
    if batch_size(before) != size or where is None:
        return True
    rows, other_rows = record_leaves(take(before, others)), record_leaves(take(after, where))
    return not (_equal(rows, other_rows) and _equal(constants(before), constants(after)))


def _equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        # A NaN that stays is the same.
        return first.shape == second.shape and bool(((first == second) | ((first != first) & (second != second))).all())
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second, equal_nan=first.dtype.kind in "fc"))
    return bool(first == second)
