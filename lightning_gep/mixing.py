"""No record may change another on its way into a batch: collate functions and Lightning's transfer hooks are tried."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, constants, record_leaves, take
from lightning_gep.gradients.randomness import LEVELS, SEEDS, quiet, random_state_kept, seed_everywhere

RECORDS_NEEDED, RECORDS_TRIED = 4, 8

Make = Callable[[list[int]], Any]
"""Positions of records → their batch."""


def check_collate(loader: DataLoader[Any], records: Sequence[Any]) -> None:
    """Raises ConfigurationError if the collate function mixes records, tried on these."""
    if loader.collate_fn is default_collate:
        return

    def collated(positions: list[int]) -> Any:
        try:
            return loader.collate_fn([records[i] for i in positions])
        except Exception as error:
            raise ConfigurationError(
                f"The train loader's collate function does not accept the public records "
                f"({type(error).__name__}: {error}). Give the auxiliary data the structure of the training data."
            ) from error

    if mixes(collated, len(records)):
        raise ConfigurationError(
            "The train loader's collate function mixes records (like MixUp or CutMix): one record would be in several "
            "gradients. Move it before batching, within each record, or remove it."
        )


def check_transfer(batch: Any, transferred: Callable[[Any], Any]) -> None:
    """Raises ConfigurationError if what happens to a batch before training_step sees it mixes its records."""
    if mixes(lambda positions: transferred(take(batch, positions)), min(RECORDS_TRIED, batch_size(batch))):
        raise ConfigurationError(
            "on_before_batch_transfer, transfer_batch_to_device or on_after_batch_transfer mixes records (MixUp, "
            "CutMix or statistics of the batch): one record would be in several gradients. Do it within each record, "
            "or remove it."
        )


def mixes(make: Make, available: int) -> bool:
    """Whether replacing one of the records changes another's row, or what belongs to all, with some random numbers."""
    if available < RECORDS_NEEDED:
        return False
    size = available // 2
    with random_state_kept():
        return any(_mixes_once(way, size) for way in _with_random_numbers(make))


def _with_random_numbers(make: Make) -> Iterator[Make]:
    """The same with other random numbers, which depend neither on the records nor on earlier calls."""

    def seeded(seed: int, make: Make) -> Make:
        def made(positions: list[int]) -> Any:
            seed_everywhere(seed)
            return make(positions)

        return made

    yield from (seeded(seed, make) for seed in SEEDS)
    yield from (seeded(0, quiet(make, level)) for level in LEVELS)


def _mixes_once(make: Make, size: int) -> bool:
    plain = list(range(size))
    before = make(plain)
    if batch_size(before) != size:
        return True
    for place in range(size):
        after = make([size + place if i == place else i for i in plain])
        others = [i for i in plain if i != place]
        if batch_size(after) != size or not _equal(
            record_leaves(take(before, others)), record_leaves(take(after, others))
        ):
            return True
        if not _equal(constants(before), constants(after)):
            return True
    return False


def _equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        # A NaN that stays is the same.
        return first.shape == second.shape and bool(((first == second) | ((first != first) & (second != second))).all())
    return bool(np.array_equal(first, second)) if isinstance(first, np.ndarray) else bool(first == second)
