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
from lightning_gep.gradients.randomness import (
    LEVELS,
    SEEDS,
    SEEDS_AT_A_LEVEL,
    quiet,
    random_state_kept,
    seed_everywhere,
)
from lightning_gep.gradients.state import (
    changed_tensors,
    changed_values,
    named_tensors,
    noted_traces,
    saved_beside_tensors,
    untouched,
)

RECORDS_NEEDED, RECORDS_TRIED = 4, 8

HOOKS = "on_before_batch_transfer, transfer_batch_to_device or on_after_batch_transfer"

Make = Callable[[list[int]], Any]
"""Positions of records → their batch."""


def check_collate(loader: DataLoader[Any], records: Sequence[Any]) -> None:
    """Raises ConfigurationError if the collate function mixes records, tried on these."""
    if loader.collate_fn is default_collate:
        return

    def collated(positions: list[int], records: Sequence[Any] = records) -> Any:
        try:
            # Copies: some take records apart.
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
        before, beside = named_tensors(module), saved_beside_tensors(module)
        available = min(RECORDS_TRIED, batch_size(batch))

        def taken(positions: list[int], batch: Any = batch) -> Any:
            return transferred(take(batch, positions))

        extremes = (partial(taken, batch=extreme) for extreme in extreme_batches(batch, row=available // 2))
        mixed = mixes(taken, available) or extremes_mix(extremes, available)
        changed = [*changed_tensors(module, before), *changed_values(beside, saved_beside_tensors(module))]
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
        if any(_mixes_once(_seeded(make, seed), size) for seed in SEEDS):
            return True
        at_levels = ((quiet(make, level), seed) for level in LEVELS for seed in SEEDS_AT_A_LEVEL)
        return any(_mixes_if_it_runs(_seeded(way, seed), size) for way, seed in at_levels)


def _with_an_extreme(records: Sequence[Any]) -> Iterator[list[Any]]:
    """The records, of which the first of the second half has an extreme value, or is longer than all others."""
    half = len(records) // 2
    for extreme in extreme_records(records[half]):
        yield [*records[:half], extreme, *records[half + 1 :]]
    for shorter in zip(*map(shorter_records, records), strict=False):
        yield [*shorter[:half], records[half], *shorter[half + 1 :]]


def extremes_mix(makes: Iterable[Make], available: int) -> bool:
    """The same for records of which the first of the second half has an extreme value, in each of `makes` another."""
    with random_state_kept():
        return any(_mixes_if_it_runs(_seeded(make, SEEDS[0]), available // 2, places=1) for make in makes)


def _seeded(make: Make, seed: int) -> Make:
    """The same with random numbers that depend neither on the records nor on earlier calls."""

    def made(positions: list[int]) -> Any:
        seed_everywhere(seed)
        return make(positions)

    return made


def _mixes_if_it_runs(make: Make, size: int, places: int | None = None) -> bool:
    """The same with random numbers, or records, so extreme that code may not be made for them."""
    try:
        return _mixes_once(make, size, places)
    except Exception:  # whatever the user's code raises then
        return False


def _mixes_once(make: Make, size: int, places: int | None = None) -> bool:
    """Whether replacing a record changes others; tried at so many places, or at all."""
    plain = list(range(size))
    before = make(plain)
    if batch_size(before) != size:
        return True
    for place in range(size if places is None else places):
        after = make([size + place if i == place else i for i in plain])
        others = [i for i in plain if i != place]
        # A record may be left out by what it holds itself.
        where = {size: others, size - 1: plain[:-1]}.get(batch_size(after))
        if where is None or not _equal(_rows(before, others), _rows(after, where)):
            return True
        if not _equal(constants(before), constants(after)):
            return True
    return False


def _rows(batch: Any, which: list[int]) -> list[Any]:
    return record_leaves(take(batch, which))


def _equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        # A NaN that stays is the same.
        return first.shape == second.shape and bool(((first == second) | ((first != first) & (second != second))).all())
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second, equal_nan=first.dtype.kind in "fc"))
    return bool(first == second)
