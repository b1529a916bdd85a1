"""Batches of any structure: how many records they hold, and the same structure with some of the records.

Own recursion rather than a library's: records are leaves only where every part agrees about their number, a list of
plain values is a leaf too, and an object of unknown type has to be refused instead of being passed on.
"""

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

    Raises:
        ConfigurationError: If the parts of the batch disagree, or none of them tells.

    """
    sizes: dict[str, int] = {}
    _map(batch, lambda leaf, path: sizes.setdefault(path, len(leaf)))
    if not sizes:
        raise ConfigurationError(f"A batch of type {type(batch).__name__} does not tell how many records it has. {FIX}")
    (first, size), *others = sizes.items()
    other = next((path for path, its_size in others if its_size != size), None)
    if other is not None:
        raise ConfigurationError(
            f"The number of records in a batch is not clear: {first} has {size}, {other} has {sizes[other]}. {FIX}"
        )
    return size


def take(batch: Any, which: Which) -> Any:
    """The same structure with the records of a slice, or those at the given positions, repeats included.

    A slice gives views of the tensors, positions give copies.
    """
    batch_size(batch)
    return _map(batch, lambda leaf, _: _take(leaf, which))


def microbatches(batch: Any, size: int) -> Iterator[Any]:
    """The batch in consecutive microbatches of at most `size` records; none for an empty batch."""
    for start in range(0, batch_size(batch), size):
        yield take(batch, slice(start, start + size))


def padded(batch: Any, size: int) -> Any:
    """The batch with copies of its first record, so many that it has `size` records."""
    own = batch_size(batch)
    return batch if own == size else take(batch, [*range(own), *[0] * (size - own)])


def joined(batches: Sequence[Any], join: Callable[[list[Tensor]], Tensor] = torch.cat) -> Any:
    """One batch with the records of several; `join` puts their tensors together."""
    columns = zip(*map(record_leaves, batches), strict=True)
    return replace_leaves(batches[0], [_joined(column, join) for column in columns])


def record_leaves(batch: Any) -> list[Any]:
    """Everything in the batch that has one entry per record, in the order `replace_leaves` takes it."""
    leaves: list[Any] = []
    _map(batch, lambda leaf, _: leaves.append(leaf))
    return leaves


def replace_leaves(batch: Any, leaves: Sequence[Any]) -> Any:
    """The same structure with other `record_leaves`."""
    replacements = iter(leaves)
    return _map(batch, lambda _, __: next(replacements))


def constants(batch: Any) -> list[Any]:
    """Everything in the batch that belongs to all of its records: tensors without dimensions and single values."""
    values = values_of(replace_leaves(batch, [None] * len(record_leaves(batch))))
    return [value for value in values if value is not None]


def values_of(record: Any) -> list[Any]:
    """Everything in a single record that is not a structure of other values, in the order `replace_values` takes it."""
    values: list[Any] = []
    _map(record, lambda value, _: values.append(value), _is_value)
    return values


def replace_values(record: Any, values: Sequence[Any]) -> Any:
    """The same structure with other `values_of`."""
    replacements = iter(values)
    return _map(record, lambda _, __: next(replacements), _is_value)


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


def _map(
    node: Any,
    function: Callable[[Any, str], Any],
    is_leaf: Callable[[Any], bool] = _holds_records,
    path: str = "batch",
) -> Any:
    """The structure with `function(leaf, path)` in place of every leaf."""

    def inner(item: Any, where: str) -> Any:
        return _map(item, function, is_leaf, path + where)

    if is_leaf(node):
        return function(node, path)
    if isinstance(node, Constant | Tensor | np.ndarray | np.generic):
        return node
    if isinstance(node, Mapping):
        items = {key: inner(value, f"[{key!r}]") for key, value in node.items()}
        if not isinstance(node, MutableMapping):
            return items
        # A copy keeps what the type holds beside its items, such as the factory of a defaultdict.
        result = copy.copy(node)
        result.update(items)
        return result
    if isinstance(node, list | tuple) and not isinstance(node, PackedSequence):
        parts = [inner(item, f"[{i}]") for i, item in enumerate(node)]
        return type(node)(*parts) if hasattr(node, "_fields") else type(node)(parts)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        names = [field.name for field in dataclasses.fields(node)]
        return dataclasses.replace(node, **{name: inner(getattr(node, name), f".{name}") for name in names})
    hint = "Pack sequences inside training_step. " if isinstance(node, PackedSequence) else ""
    raise ConfigurationError(f"{path} is a {type(node).__name__}, whose records cannot be told apart. {hint}{FIX}")


def _take(leaf: Any, which: Which) -> Any:
    if isinstance(which, slice):
        return leaf[which]
    positions = list(which)
    if isinstance(leaf, Tensor):
        return leaf[torch.tensor(positions, dtype=torch.long, device=leaf.device)]
    return leaf[positions] if isinstance(leaf, np.ndarray) else type(leaf)(leaf[position] for position in positions)


def _joined(parts: Sequence[Any], join: Callable[[list[Tensor]], Tensor]) -> Any:
    if isinstance(parts[0], Tensor):
        return join(list(parts))
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return type(parts[0])(entry for part in parts for entry in part)
