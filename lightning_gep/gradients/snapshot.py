"""What objects hold, all the way down, to be put back after running code that must leave no trace.

Private parts of torch are used here and in `state` only: the dicts in which an `nn.Module` keeps its parameters,
buffers and submodules, without which every fit would fail at once, and the write count of a tensor (`_version`),
without which writes that change nothing on public records would be missed.
"""

import pickle
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from operator import is_
from types import CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

NOT_FOLLOWED = {
    *("lightning", "pytorch_lightning", "lightning_fabric", "lightning_gep", "wandb", "tensorboard", "tqdm", "rich"),
    *("logging", "threading", "_thread", "queue", "multiprocessing", "concurrent", "asyncio", "weakref"),
    *("io", "_io", "inspect", "enum", "re", "pathlib", "builtins"),
}
"""Packages whose objects are not looked into: the trainer and its parts, and what other threads may be writing to."""
LIBRARIES = NOT_FOLLOWED | {"torch", "torchmetrics", "abc", "collections", "functools", "numpy", "typing", "types"}
"""Packages whose classes hold no results."""
REGISTERS = ("_parameters", "_buffers", "_modules")
"""Attributes in which a module keeps what is registered, under names that count as its own attributes."""


class Snapshot:
    """Copies of what values hold at this moment; they come with names, as from `reachable`, and are not followed."""

    def __init__(self, values: Iterable[tuple[str, Any]]) -> None:
        self._held: list[tuple[str, Any, Holder, Any]] = []
        for name, value in values:
            holder = _holder(_kind(value))
            if holder is not None and holder.copy is not None:
                self._held.append((name, value, holder, holder.copy(value)))
        tensors = ((name, value) for name, value, _, _ in self._held if isinstance(value, Tensor))
        self._writes = [(name, value, value._version) for name, value in tensors if not value.is_inference()]

    def put_back(self) -> list[str]:
        """Make everything hold what it did; returns the names of what did not."""
        changed: list[str] = []
        for name, value, holder, content in self._held:
            if not holder.same(value, content):
                changed += _changed_names(name, value, content)
                holder.write(value, content)
        return changed

    def written(self) -> list[str]:
        """Names of the tensors that were written to, whether that changed them or not; not seen is writing to .data."""
        return [name.strip(".") for name, tensor, count in self._writes if tensor._version != count]


def reachable(*roots: Any) -> Iterator[tuple[str, Any]]:
    """Everything that can change and is reached from the roots, with the attribute of a module that leads to it.

    Followed are tensors, arrays, containers, modules, functions with what they enclose, classes with their methods, and
    other Python objects. Not followed are data sets, loaders, and objects of Lightning and of libraries that use
    threads, unless they are roots.
    """
    seen: dict[int, Any] = {}  # holds the values, so that no other can get the address of one of them
    for root in roots:
        # A name with a dot at its end is that of a module itself: whatever its dicts hold has a name of its own.
        name = "" if isinstance(root, nn.Module) else type(root).__name__
        waiting = [(f"{name}.", part) for part in _parts(root)]
        while waiting:
            name, value = waiting.pop()
            holder = _holder(_kind(value))
            if holder is None or id(value) in seen:
                continue
            seen[id(value)] = value
            yield name, value
            if isinstance(value, nn.Module):
                waiting += [(f"{name}.", part) for part in _parts(value)]
            elif isinstance(value, dict) and name.endswith("."):
                waiting += [(name if key in REGISTERS else f"{name}{key}", item) for key, item in value.items()]
            else:
                waiting += [(name, item) for item in holder.items(value)]


def _changed_names(name: str, value: Any, content: Any) -> list[str]:
    if not (name.endswith(".") and isinstance(content, Mapping)):
        return [name.strip(".")]
    now, missing = value.read() if isinstance(value, _Attributes) else value, object()
    keys = [key for key in {**content, **now} if now.get(key, missing) is not content.get(key, missing)]
    return [f"{name}{key}".strip(".") for key in keys]


@dataclass(frozen=True)
class Holder:
    """How values of a type are looked into, copied, compared with a copy and made equal to it."""

    items: Callable[[Any], Iterable[Any]]
    copy: Callable[[Any], Any] | None = None
    same: Callable[[Any, Any], bool] = lambda value, content: True
    write: Callable[[Any, Any], None] = lambda value, content: None


class _Attributes:
    """Attributes that are in no dict: those of a class, slots, the gradient of a tensor, what a function encloses."""

    def __init__(self, owner: Any, read: Callable[[Any], dict[str, Any]]) -> None:
        self.owner, self._read = owner, read

    def read(self) -> dict[str, Any]:
        return self._read(self.owner)

    def write(self, content: Mapping[str, Any]) -> None:
        now = self.read()
        for name in now.keys() - content.keys():
            delattr(self.owner, name)
        for name, value in content.items():
            if name not in now or now[name] is not value:
                setattr(self.owner, name, value)


def _same_tensor(tensor: Tensor, values: Tensor) -> bool:
    """Whether a tensor has the shape, type and values of another; a NaN that stays is not a change."""
    if (tensor.shape, tensor.dtype, tensor.layout) != (values.shape, values.dtype, values.layout):
        return False
    return all(map(_same_numbers, _parts_of_values(tensor), _parts_of_values(values)))


def _same_numbers(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape:
        return False
    return torch.equal(first, second) or bool(((first == second) | ((first != first) & (second != second))).all())


def _parts_of_values(tensor: Tensor) -> tuple[Tensor, ...]:
    """Itself, or the indices and values of a sparse tensor."""
    if tensor.layout == torch.strided:
        return (tensor,)
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def same_value(first: Any, second: Any) -> bool:
    """Whether two values of any structure are equal; what cannot be compared is not."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return _same_tensor(first, second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(same_value(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same_value, first, second))
    try:
        return pickle.dumps(first) == pickle.dumps(second)
    except Exception:
        return False


def _write_tensor(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor the shape and values of another, in its own memory if they fit."""
    parts = list(zip(_parts_of_values(tensor), _parts_of_values(values), strict=False))
    fits = all(part.shape == other.shape and part.dtype == other.dtype for part, other in parts)
    if not fits or tensor.layout != values.layout:
        tensor.data = values
        return
    for part, other in parts:
        part.data.copy_(other)


def _parts(value: Any) -> Iterator[Any]:
    """What an object consists of."""
    if isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    if hasattr(value, "__dict__"):
        yield vars(value)
    yield from _parts_of_class(type(value))
    if _slots(_kind(value)):
        yield _Attributes(value, _slot_values)


def _parts_of_class(kind: type) -> Iterator[Any]:
    yield from (_attributes_of_class(base) for base in kind.__mro__ if package(base) not in LIBRARIES)


@cache
def _attributes_of_class(kind: type) -> _Attributes:
    def read(kind: type) -> dict[str, Any]:
        return {name: value for name, value in vars(kind).items() if not name.startswith("__")}

    return _Attributes(kind, read)


@cache
def _slots(kind: Any) -> tuple[str, ...]:
    """The slots of a type, if it is somebody's own."""
    bases = () if package(kind) in LIBRARIES else kind.__mro__
    found = ((name, item) for base in bases if "__slots__" in vars(base) for name, item in vars(base).items())
    return tuple(name for name, item in found if isinstance(item, MemberDescriptorType))


def _slot_values(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _slots(_kind(value)) if hasattr(value, name)}


def _parts_of_tensor(tensor: Tensor) -> Iterator[Any]:
    yield vars(tensor)
    if tensor.is_leaf:
        yield _Attributes(tensor, lambda tensor: {"grad": tensor.grad})


def _parts_of_function(function: FunctionType) -> Iterator[Any]:
    yield from (_Attributes(cell, _enclosed) for cell in function.__closure__ or ())
    yield from (function.__defaults__, function.__kwdefaults__, vars(function))


def _enclosed(cell: CellType) -> dict[str, Any]:
    try:
        return {"cell_contents": cell.cell_contents}
    except ValueError:  # nothing yet
        return {}


def _identical(items: Any, others: Any) -> bool:
    return len(items) == len(others) and all(map(is_, items, others))


def _same_items(items: Mapping[Any, Any], others: Mapping[Any, Any]) -> bool:
    return _identical(items, others) and all(map(is_, items.values(), others.values()))


def _write_slice(values: Any, content: Any) -> None:
    values[:] = content


def _refill(values: Any, content: Any) -> None:
    values.clear()
    values.extend(content) if isinstance(values, deque) else values.update(content)


HOLDERS: dict[type, Holder] = {
    Tensor: Holder(_parts_of_tensor, lambda tensor: tensor.detach().clone(), _same_tensor, _write_tensor),
    np.ndarray: Holder(
        lambda values: values.flat if values.dtype.hasobject else (),
        np.copy,
        lambda a, b: a.tobytes() == b.tobytes(),
        np.copyto,
    ),
    array: Holder(lambda data: (), lambda data: data[:], lambda a, b: a.tobytes() == b.tobytes(), _write_slice),
    dict: Holder(lambda items: items.values(), dict, _same_items, _refill),
    list: Holder(iter, list, _identical, _write_slice),
    set: Holder(iter, set, set.__eq__, _refill),
    deque: Holder(iter, list, _identical, _refill),
    WeakKeyDictionary: Holder(lambda items: items.values(), dict, _same_items, _refill),
    ReferenceType: Holder(lambda reference: (reference(),)),
    bytearray: Holder(lambda data: (), bytes, lambda data, content: data == content, _write_slice),
    _Attributes: Holder(
        lambda attributes: attributes.read().values(),
        _Attributes.read,
        lambda attributes, content: _same_items(attributes.read(), content),
        _Attributes.write,
    ),
    tuple: Holder(iter),
    FunctionType: Holder(_parts_of_function),
    MethodType: Holder(lambda method: (method.__self__,)),
    classmethod: Holder(lambda method: (method.__func__,)),
    staticmethod: Holder(lambda method: (method.__func__,)),
    property: Holder(lambda own: (own.fget, own.fset, own.fdel)),
    type: Holder(_parts_of_class),
    nn.Module: Holder(_parts),
}


@cache
def _holder(kind: Any) -> Holder | None:
    """How a value of a type is treated; None if it cannot change or is not followed."""
    known = next((HOLDERS[base] for base in kind.__mro__ if base in HOLDERS), None)
    if known is not None:
        # A list or an array of the user's own kind may have attributes beside its entries.
        own = package(kind) not in LIBRARIES and not issubclass(kind, nn.Module)
        return replace(known, items=lambda value: chain(known.items(value), _parts(value))) if own else known
    foreign = any(package(base) in NOT_FOLLOWED for base in kind.__mro__ if base is not object)
    private = kind.__module__.startswith("torch._")
    return None if foreign or private or issubclass(kind, Dataset | DataLoader | torch.Generator) else Holder(_parts)


def _kind(value: Any) -> Any:  # what mypy takes for hashable
    return type(value)


def package(kind: type) -> str:
    """The package in which a type is defined."""
    return kind.__module__.partition(".")[0]
