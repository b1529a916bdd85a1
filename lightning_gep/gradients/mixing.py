"""No record may change another on its way into a batch: collate functions and Lightning's transfer hooks are tried.

They are tried with many seeds, and with a record of extreme values: what code does to a batch that holds one cannot be
seen on well-behaved records.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import (
    batch_size,
    constants,
    joined,
    record_leaves,
    replace_values,
    take,
    values_of,
)
from lightning_gep.gradients.isolation import in_short
from lightning_gep.gradients.randomness import random_state_kept, seeded
from lightning_gep.gradients.snapshot import same_value
from lightning_gep.gradients.state import registered, untouched

RECORDS_NEEDED, RECORDS_TRIED = 4, 8
SEEDS = range(64)
"""A mixing that happens to a batch with probability 0.1 is missed by all of them in one case of a thousand."""
PADDED = "Padding to one length mixes nothing: DataLoader(..., collate_fn=FixedLength(collate_fn, 128))."
HOOKS = "on_before_batch_transfer, transfer_batch_to_device or on_after_batch_transfer"
FLOATS = (math.nan, math.inf, -math.inf, 1e4, -1e4, 1e30, -1e30, 0.0)
INTEGERS = (0, -1, -100)
"""What stands for padding, for nothing, and for a target that a loss ignores."""
EXTREMES = {"U": ("",), "b": (False, True), "i": INTEGERS, "u": INTEGERS, "f": FLOATS, "c": FLOATS}
"""By NumPy's kind of type."""

Make = Callable[[list[int]], Any]
"""Positions of records → their batch."""


def check_collate(loader: DataLoader[Any], records: Sequence[Any], *, reveal_errors: bool = False) -> bool:
    """Raises ConfigurationError if the collate function mixes records, tried on these.

    Its own errors are reported with their text only if asked for: without public data, texts are of training records.
    Returns whether it mixes records of different lengths, like one that pads them to the longest of the batch: then all
    training records must have one length.
    """
    if loader.collate_fn is default_collate:
        return False

    def collated(positions: list[int], records: Sequence[Any] = records) -> Any:
        try:
            # Copies: some collate functions take records apart.
            return loader.collate_fn([copy.deepcopy(records[i]) for i in positions])
        except Exception as error:
            cause = error
        raise ConfigurationError(
            "The train loader's collate function does not accept the records it is tried on "
            f"({in_short(cause) if reveal_errors else type(cause).__name__}). Give aux_dataloader records with the "
            "structure of the training data."
        ) from (cause if reveal_errors else None)

    if mixes(collated, len(records), (partial(collated, records=changed) for changed in _with_an_extreme(records))):
        raise ConfigurationError(
            "The train loader's collate function mixes records (like MixUp or CutMix, by padding them to the longest "
            "of the batch, by random numbers whose count depends on a record, or by telling how many there are): one "
            f"would change the gradients of others. Move it before batching, within each record. {PADDED}"
        )
    return mixes_some((partial(collated, records=changed) for changed in _of_two_lengths(records)), len(records))


def check_transfer(module: nn.Module, batch: Any, transferred: Callable[[Any], Any]) -> None:
    """Raises ConfigurationError if what happens to a batch before training_step sees it mixes or keeps its records."""
    available = min(RECORDS_TRIED, batch_size(batch))
    if available < RECORDS_NEEDED:
        raise ConfigurationError(
            f"The public batch has {available} records; checking takes {RECORDS_NEEDED} at least. Use a larger batch "
            "size for the auxiliary data."
        )

    def taken(positions: list[int], batch: Any = batch) -> Any:
        return transferred(take(batch, positions))

    saved = {name for name, _ in registered(module)}
    with untouched(module) as written:
        extremes = (partial(taken, batch=extreme) for extreme in extreme_batches(batch, row=available // 2))
        mixed = mixes(taken, available, extremes)
    if mixed:
        raise ConfigurationError(
            f"{HOOKS} mixes records (MixUp, CutMix, statistics of the batch or the number of its records): one record "
            "would be in several gradients. Do it within each record, or remove it."
        )
    released = [name for name in written if name in saved]
    if released:
        raise ConfigurationError(
            f"{HOOKS} changes {', '.join(released)}: what it computes there from the records would be released without "
            "noise. Remove it."
        )
    if written:
        raise ConfigurationError(
            f"{HOOKS} sets {', '.join(written)} of the module, by which records could reach the gradients of others. "
            "Hand it on in the batch, a value for each record, or remove it."
        )


def mixes(make: Make, available: int, with_an_extreme: Iterable[Make] = ()) -> bool:
    """Whether replacing one of the records changes another's row, or what belongs to all, with some random numbers.

    One record less must not change what belongs to all, either. Also tried are other ways to make the batch, in which
    the first record of the second half has an extreme value.
    """
    size = available // 2
    with random_state_kept():
        usual = any(_mixes_at(seed % size, seeded(make, seed), size) for seed in SEEDS) or _counts(make, size)
    return usual or mixes_some(with_an_extreme, available)


def mixes_some(ways: Iterable[Make], available: int) -> bool:
    """The same for each of several ways to make a batch of unusual records, with the same random numbers."""

    def if_it_runs(make: Make) -> bool:
        try:
            return _mixes_at(0, seeded(make, SEEDS[0]), available // 2)
        except Exception:  # code need not be made for such records: what it raises ends a training
            return False

    with random_state_kept():
        return any(map(if_it_runs, ways))


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
    return not (same_value(rows, other_rows) and same_value(constants(before), constants(after)))


def _counts(make: Make, size: int) -> bool:
    """Whether what belongs to all records depends on how many there are; random numbers of a whole batch may."""
    whole, redrawn, fewer = (
        constants(seeded(make, seed)(list(range(count)))) for seed, count in ((0, size), (1, size), (0, size - 1))
    )
    known = [same_value(*pair) for pair in zip(whole, redrawn, strict=True)]
    return len(fewer) != len(whole) or any(
        is_known and not same_value(*pair) for is_known, *pair in zip(known, whole, fewer, strict=True)
    )


def _with_an_extreme(records: Sequence[Any]) -> Iterator[list[Any]]:
    """The records, of which the first of the second half has an extreme value, or a longer text than all others."""
    half = len(records) // 2
    for extreme in extreme_records(records[half]):
        yield [*records[:half], extreme, *records[half + 1 :]]
    yield from _of_two_lengths(records, texts=True)


def _of_two_lengths(records: Sequence[Any], *, texts: bool = False) -> Iterator[list[Any]]:
    """The records, of which the first of the second half is longer than all others, in its texts or all else."""
    half = len(records) // 2
    for shorter in zip(*(shorter_records(record, texts=texts) for record in records), strict=False):
        yield [*shorter[:half], records[half], *shorter[half + 1 :]]


def extreme_batches(batch: Any, row: int) -> Iterator[Any]:
    """The batch with that record's part of each leaf in turn replaced by each of the extreme values."""
    before, after = take(batch, slice(0, row)), take(batch, slice(row + 1, None))
    for extreme in extreme_records(take(batch, [row])):
        yield joined([before, extreme, after])


def extreme_records(record: Any) -> Iterator[Any]:
    """The record with each of its values in turn replaced by each of the extreme ones."""
    return _each(record, lambda value: [_filled(value, extreme) for extreme in _extremes_of(value)])


def shorter_records(record: Any, *, texts: bool = False) -> Iterator[Any]:
    """The record with each of its sequences, or its texts, in turn cut to half its length, and with all of them cut."""

    def cut(value: Any) -> list[Any]:
        return _cut(value) if isinstance(value, str | bytes) == texts else []

    yield from _each(record, cut)
    for way in (0, -1):
        yield replace_values(record, [(cut(value) or [value])[way] for value in values_of(record)])


def lengths_of(record: Any) -> list[Any]:
    """The shapes of arrays and the lengths of lists in a record."""
    arrays = Tensor | np.ndarray
    return [
        tuple(value.shape) if isinstance(value, arrays) else len(value)
        for value in values_of(record)
        if isinstance(value, arrays | list | tuple)
    ]


def _each(record: Any, others: Callable[[Any], Sequence[Any]]) -> Iterator[Any]:
    values = values_of(record)
    for i, value in enumerate(values):
        yield from (replace_values(record, [*values[:i], other, *values[i + 1 :]]) for other in others(value))


def _cut(value: Any) -> list[Any]:
    """The first half of a sequence; of an array with several dimensions, along the first and along the last."""
    if isinstance(value, str | bytes | list | tuple):
        return [value[: len(value) // 2]]
    if not isinstance(value, Tensor | np.ndarray) or value.ndim == 0:
        return []
    return [value[: len(value) // 2], value[..., : value.shape[-1] // 2]][: value.ndim]


def _extremes_of(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return _extremes_of(value[0]) if len(value) else ()
    if isinstance(value, Tensor):  # also of types that NumPy does not have
        kind = "f" if value.is_floating_point() or value.is_complex() else "b" if value.dtype == torch.bool else "i"
    else:
        kind = np.asarray(value).dtype.kind
    return EXTREMES.get(kind, ())


def _filled(value: Any, extreme: Any) -> Any:
    """The extreme value in the shape and type of this one, in which it may overflow."""
    if isinstance(value, Tensor):
        return torch.tensor(extreme).to(value).expand_as(value).clone()
    if isinstance(value, np.ndarray):
        with np.errstate(all="ignore"):
            return np.full(value.shape, np.asarray(extreme).astype(value.dtype))
    return type(value)([extreme] * len(value)) if isinstance(value, list | tuple) else extreme
