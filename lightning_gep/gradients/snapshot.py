"""What objects hold, all the way down, to be put back after running code that must leave no trace."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from operator import is_
from types import BuiltinFunctionType, CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any

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
CALLABLES = (FunctionType, MethodType, BuiltinFunctionType, partial)
NOT_DATA = (*CALLABLES, classmethod, staticmethod, property, type, GetSetDescriptorType, MemberDescriptorType)


class Snapshot:
    """What the roots, and everything reached from them, hold at this moment.

    Followed are tensors, arrays, containers, modules, functions with what they enclose, and other Python objects with
    their classes. Not followed are data sets, loaders, and objects of Lightning and of libraries that use threads,
    unless they are roots. What is in `apart` is followed, but neither copied nor put back.
    """

    def __init__(self, *roots: Any, apart: Iterable[Any] = ()) -> None:
        left_out = {id(value): value for value in apart}
        self._held: list[tuple[Holder, Any, Any]] = []
        seen: set[int] = set()
        waiting = [part for root in roots for part in _parts(root)]
        while waiting:
            value = waiting.pop()
            kind: Any = type(value)
            holder = _holder(kind)
            if holder is None or id(value) in seen:
                continue
            seen.add(id(value))
            if holder.copy is not None and id(value) not in left_out:
                self._held.append((holder, value, holder.copy(value)))
            waiting.extend(holder.items(value))

    def put_back(self) -> bool:
        """Make everything hold what it did; tells whether something did not."""
        changed = False
        for holder, value, content in self._held:
            if not holder.same(value, content):
                holder.write(value, content)
                changed = True
        return changed


@dataclass(frozen=True)
class Holder:
    """How values of a type are looked into, copied, compared with a copy and made equal to it."""

    items: Callable[[Any], Iterable[Any]]
    copy: Callable[[Any], Any] | None = None
    same: Callable[[Any, Any], bool] = lambda value, content: True
    write: Callable[[Any, Any], None] = lambda value, content: None


class _Attributes:
    """Attributes that are in no dict: those of a class, slots, the gradient of a tensor."""

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


def same_tensor(tensor: Tensor, values: Tensor) -> bool:
    """Whether a tensor has the shape, type and values of another; a NaN that stays is not a change."""
    if tensor.shape != values.shape or tensor.dtype != values.dtype:
        return False
    return torch.equal(tensor, values) or bool(((tensor == values) | ((tensor != tensor) & (values != values))).all())


def write_tensor(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor the shape and values of another, in its own memory if they fit."""
    if tensor.shape == values.shape and tensor.dtype == values.dtype:
        tensor.data.copy_(values)
    else:
        tensor.data = values


def _parts(value: Any) -> Iterator[Any]:
    """What an object consists of."""
    if isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    if hasattr(value, "__dict__"):
        yield vars(value)
    kind: Any = type(value)
    yield from (_attributes_of_class(base) for base in kind.__mro__ if package(base) not in LIBRARIES)
    if _slots(kind):
        yield _Attributes(value, _slot_values)


@cache
def _attributes_of_class(kind: type) -> _Attributes:
    return _Attributes(kind, lambda kind: {name: value for name, value in vars(kind).items() if _is_data(name, value)})


def _is_data(name: str, value: Any) -> bool:
    return not name.startswith("__") and not isinstance(value, NOT_DATA)


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """The slots of a type, if it is somebody's own."""
    if package(kind) in LIBRARIES:
        return ()
    named = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = [name for slots in named for name in ((slots,) if isinstance(slots, str) else slots)]
    return tuple(name for name in names if not name.startswith("__"))


def _slot_values(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}


def _parts_of_tensor(tensor: Tensor) -> Iterator[Any]:
    yield vars(tensor)
    if tensor.is_leaf:
        yield _Attributes(tensor, lambda tensor: {"grad": tensor.grad})


def _parts_of_function(function: FunctionType) -> Iterator[Any]:
    yield from function.__closure__ or ()
    yield from (function.__defaults__, function.__kwdefaults__, vars(function))


def _enclosed(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # nothing yet
        return []


def _write_cell(cell: CellType, content: list[Any]) -> None:
    if content:
        cell.cell_contents = content[0]
    else:
        del cell.cell_contents


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
    Tensor: Holder(_parts_of_tensor, lambda tensor: tensor.detach().clone(), same_tensor, write_tensor),
    np.ndarray: Holder(lambda array: (), np.copy, lambda a, b: a.tobytes() == b.tobytes(), np.copyto),
    dict: Holder(lambda items: items.values(), dict, _same_items, _refill),
    list: Holder(iter, list, _identical, _write_slice),
    set: Holder(iter, set, set.__eq__, _refill),
    deque: Holder(iter, list, _identical, _refill),
    bytearray: Holder(lambda data: (), bytes, lambda data, content: data == content, _write_slice),
    CellType: Holder(_enclosed, _enclosed, lambda cell, content: _identical(_enclosed(cell), content), _write_cell),
    _Attributes: Holder(
        lambda attributes: attributes.read().values(),
        _Attributes.read,
        lambda attributes, content: _same_items(attributes.read(), content),
        _Attributes.write,
    ),
    tuple: Holder(iter),
    FunctionType: Holder(_parts_of_function),
    MethodType: Holder(lambda method: (method.__self__,)),
    nn.Module: Holder(_parts),
}


@cache
def _holder(kind: type) -> Holder | None:
    """How a value of a type is treated; None if it cannot change or is not followed."""
    known = next((HOLDERS[base] for base in kind.__mro__ if base in HOLDERS), None)
    if known is not None:
        return known
    foreign = any(package(base) in NOT_FOLLOWED for base in kind.__mro__ if base is not object)
    private = kind.__module__.startswith("torch._")
    return None if foreign or private or issubclass(kind, Dataset | DataLoader | torch.Generator) else Holder(_parts)


def package(kind: type) -> str:
    """The package in which a type is defined."""
    return kind.__module__.partition(".")[0]
