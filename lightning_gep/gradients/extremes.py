"""Records with extreme values: what code does to a batch that holds one cannot be seen on well-behaved records."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_gep.gradients.batches import record_leaves, replace_leaves, replace_values, values_of

OF_FLOATS = (math.nan, math.inf, -math.inf, 1e4, -1e4, 1e30, -1e30, 0.0)
OF_INTEGERS = (0, -1, -100)
"""What stands for padding, for nothing, and for a target that a loss ignores."""


def extreme_batches(batch: Any, row: int) -> Iterator[Any]:
    """The batch with that record's part of each leaf in turn replaced by each of the extreme values."""
    leaves = record_leaves(batch)
    for i, leaf in enumerate(leaves):
        for value in _extremes_of(leaf):
            yield replace_leaves(batch, [*leaves[:i], _with_row(leaf, row, value), *leaves[i + 1 :]])


def extreme_records(record: Any) -> Iterator[Any]:
    """The record with each of its values in turn replaced by each of the extreme ones."""
    return _each(record, lambda value: [_filled(value, extreme) for extreme in _extremes_of(value)])


def shorter_records(record: Any) -> Iterator[Any]:
    """The record with each of its values in turn cut to half its length, and with all of them cut."""
    yield from _each(record, _cut)
    for way in (0, -1):
        yield replace_values(record, [(_cut(value) or [value])[way] for value in values_of(record)])


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
    if isinstance(value, Tensor):
        kind = "f" if value.is_floating_point() or value.is_complex() else "b" if value.dtype == torch.bool else "i"
    else:
        kind = np.asarray(value).dtype.kind
    of_kind = {"U": ("",), "b": (False, True), "i": OF_INTEGERS, "u": OF_INTEGERS, "f": OF_FLOATS, "c": OF_FLOATS}
    return of_kind.get(kind, ())


def _with_row(leaf: Any, row: int, value: Any) -> Any:
    if not isinstance(leaf, Tensor | np.ndarray):
        return type(leaf)([*leaf[:row], value, *leaf[row + 1 :]])
    changed = leaf.clone() if isinstance(leaf, Tensor) else leaf.copy()
    changed[row] = _filled(leaf[row] if isinstance(leaf, Tensor) else np.asarray(leaf[row]), value)
    return changed


def _filled(value: Any, extreme: Any) -> Any:
    """The extreme value in the shape and type of this one, in which it may overflow."""
    if isinstance(value, Tensor):
        return torch.tensor(extreme).to(value).expand_as(value).clone()
    if isinstance(value, np.ndarray):
        with np.errstate(all="ignore"):
            return np.full(value.shape, np.asarray(extreme).astype(value.dtype))
    return type(value)([extreme] * len(value)) if isinstance(value, list | tuple) else extreme
