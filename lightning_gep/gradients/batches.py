"""Batches of any structure: how many records they hold, and the same structure with some of the records."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lightning_gep.errors import ConfigurationError

Which: TypeAlias = slice | Sequence[int]
Constant = str | bytes | int | float | complex | None
"""What a batch may hold beside its records; a list or tuple of such values holds one for each record."""

FIX = "Give every tensor a leading batch dimension and every list one entry per record, e.g. in the collate function."


def batch_size(batch: Any) -> int:
    """Number of records in a batch.

    A batch is a tensor or array with a leading batch dimension, a list or tuple with one plain value (string, number,
    None) per record, or a dict, list, tuple, named tuple or dataclass of batches of the same size. Tensors without
    dimensions and single plain values belong to all records and do not count.
    """
    sizes: dict[str, int] = {}
    _map(batch, "batch", lambda leaf, path: sizes.setdefault(path, len(leaf)))
    if not sizes:
        raise ConfigurationError(f"The number of records in a batch of type {_kind(batch)} cannot be told. {FIX}")
    if len(set(sizes.values())) > 1:
        first, other = _two_that_differ(sizes)
        raise ConfigurationError(
            f"The number of records in a batch is not clear: {first} has {sizes[first]}, {other} has {sizes[other]}. "
            + FIX
        )
    return next(iter(sizes.values()))


def take(batch: Any, which: Which) -> Any:
    """The same structure with the records of a slice, or those at the given positions, repeats included.

    A slice gives views of the tensors, positions give copies.
    """
    batch_size(batch)
    return _map(batch, "batch", lambda leaf, _: _take(leaf, which))


def microbatches(batch: Any, size: int) -> Iterator[Any]:
    """The batch in consecutive pieces of at most `size` records; none for an empty batch."""
    for start in range(0, batch_size(batch), size):
        yield take(batch, slice(start, start + size))


def record_leaves(batch: Any) -> list[Any]:
    """Everything in the batch that has one entry per record, in the order `replace_leaves` takes it."""
    leaves: list[Any] = []
    _map(batch, "batch", lambda leaf, _: leaves.append(leaf))
    return leaves


def constants(batch: Any) -> list[Any]:
    """Everything in the batch that belongs to all of its records: tensors without dimensions and single values."""
    found: list[Any] = []
    _map(batch, "batch", lambda leaf, _: leaf, found.append)
    return found


def replace_leaves(batch: Any, leaves: Sequence[Any]) -> Any:
    """The same structure with other `record_leaves`."""
    replacements = iter(leaves)
    return _map(batch, "batch", lambda _, __: next(replacements))


def values_of(record: Any) -> list[Any]:
    """Everything in a single record that is not a structure of other values, in the order `replace_values` takes it."""
    values: list[Any] = []
    _map(record, "record", lambda value, _: values.append(value), is_leaf=_is_value)
    return values


def replace_values(record: Any, values: Sequence[Any]) -> Any:
    """The same structure with other `values_of`."""
    replacements = iter(values)
    return _map(record, "record", lambda _, __: next(replacements), is_leaf=_is_value)


def _map(
    node: Any,
    path: str,
    function: Callable[[Any, str], Any],
    see: Callable[[Any], None] = lambda constant: None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """The structure with `function(leaf, path)` in the place of every leaf.

    That is what has one entry per record, unless `is_leaf` tells otherwise. `see` is shown the others.
    """
    if (is_leaf or _holds_records)(node):
        return function(node, path)
    if isinstance(node, Constant | Tensor | np.ndarray | np.generic):
        see(node)
        return node
    if isinstance(node, Mapping):
        return _map_items(node, path, function, see, is_leaf)
    if isinstance(node, list | tuple) and not isinstance(node, PackedSequence):
        items = [_map(item, f"{path}[{i}]", function, see, is_leaf) for i, item in enumerate(node)]
        return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        names = [field.name for field in dataclasses.fields(node)]
        changes = {name: _map(getattr(node, name), f"{path}.{name}", function, see, is_leaf) for name in names}
        return dataclasses.replace(node, **changes)
    hint = "Pack sequences inside training_step. " if isinstance(node, PackedSequence) else ""
    raise ConfigurationError(f"{path} is a {_kind(node)}, whose records cannot be told apart. {hint}{FIX}")


def _map_items(
    node: Mapping[Any, Any],
    path: str,
    function: Callable[[Any, str], Any],
    see: Callable[[Any], None],
    is_leaf: Callable[[Any], bool] | None,
) -> Mapping[Any, Any]:
    items = {key: _map(value, f"{path}[{key!r}]", function, see, is_leaf) for key, value in node.items()}
    if not isinstance(node, MutableMapping):
        return items
    # A copy keeps what the type holds beside its items, such as the factory of a defaultdict.
    result = copy.copy(node)
    result.update(items)
    return result


def _holds_records(node: Any) -> bool:
    if isinstance(node, Tensor | np.ndarray):
        return node.ndim > 0
    is_sequence = isinstance(node, list | tuple) and not hasattr(node, "_fields")
    return is_sequence and all(isinstance(item, Constant) for item in node)


def _is_value(node: Any) -> bool:
    """Of a single record. A list of numbers of one type, such as tokens, is one value; a text and its label are two."""
    if isinstance(node, PackedSequence | type):
        return True
    if isinstance(node, list | tuple) and not hasattr(node, "_fields"):
        kinds = {type(item) for item in node}
        return kinds <= {int} or kinds <= {float}
    return not (isinstance(node, Mapping | tuple) or dataclasses.is_dataclass(node))


def _take(leaf: Any, which: Which) -> Any:
    if isinstance(which, slice):
        return leaf[which]
    positions = list(which)
    if isinstance(leaf, Tensor):
        return leaf[torch.tensor(positions, dtype=torch.long, device=leaf.device)]
    if isinstance(leaf, np.ndarray):
        return leaf[positions]
    return type(leaf)(leaf[position] for position in positions)


def _two_that_differ(sizes: Mapping[str, int]) -> tuple[str, str]:
    first = next(iter(sizes))
    return first, next(path for path, size in sizes.items() if size != sizes[first])


def _kind(value: Any) -> str:
    return type(value).__name__
