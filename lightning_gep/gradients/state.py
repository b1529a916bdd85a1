"""What a module holds: put back after trial runs, and compared."""

import copy
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gep.errors import ConfigurationError


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Whatever runs inside leaves no trace in the module, except in its parameters and in objects of other libraries.

    On leaving, the modes, buffers, tensors and containers of the module and its submodules hold what they held before:
    metrics are not updated, lists that collect outputs do not grow.
    """
    kept: dict[int, tuple[Any, Any]] = {}
    for part in module.modules():
        _keep(vars(part), kept)
    try:
        yield
    finally:
        for holder, content in kept.values():
            _put_back(holder, content)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """All of the module in evaluation mode; each part goes back to the mode it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def parameters_kept(module: nn.Module) -> Iterator[None]:
    """On leaving, the parameters have the values they had before."""
    before = [(p, p.detach().clone()) for p in module.parameters()]
    try:
        yield
    finally:
        for p, values in before:
            _put_back(p, values)


@contextmanager
def state_unchanged(module: nn.Module) -> Iterator[None]:
    """Raises ConfigurationError on leaving if a parameter, a buffer or what else a checkpoint holds has changed.

    Values are compared, so writing through `.data`, which autograd does not see, is found too. After any error
    parameters and buffers hold what they did before: a checkpoint saved then would release what was written.
    """
    members = [held for part in module.modules() for held in (part._parameters, part._buffers, part._modules)]
    kept = [(held, dict(held)) for held in members]
    tensors, before, beside = _tensors(module), named_tensors(module), saved_beside_tensors(module)
    try:
        yield
        check_unchanged(module, before, beside)
    except GeneratorExit:  # closed, perhaps long after, when the weights have moved on
        raise
    except BaseException:  # Ctrl-C too, after which a checkpoint is saved
        for held, content in kept:
            _put_back(held, content)
        for name, tensor in tensors.items():
            if not _same(tensor, before[name]):
                tensor.data = before[name]
        raise


def check_unchanged(module: nn.Module, before: Mapping[str, Tensor], beside: Mapping[str, Any]) -> None:
    """Raises ConfigurationError unless the module holds what `named_tensors` and `saved_beside_tensors` told before."""
    changed = changed_tensors(module, before) + changed_values(beside, saved_beside_tensors(module))
    if changed:
        raise ConfigurationError(
            f"training_step changes {', '.join(changed)}: what it computes there from the records would be released "
            "without noise. Remove it (for norm layers: track_running_stats=False), freeze it with .eval(), or update "
            "it from the weights alone, in on_train_batch_end."
        )


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in _tensors(module).items()}


def changed_tensors(module: nn.Module, before: Mapping[str, Tensor]) -> list[str]:
    """Names of the parameters and buffers that do not hold what they did, came or went."""
    now = _tensors(module)
    return [name for name in {**before, **now} if not _same(now.get(name), before.get(name))]


def saved_beside_tensors(module: nn.Module) -> dict[str, Any]:
    """Copies of what a checkpoint would hold beside parameters and buffers: states of metrics, extra state."""
    known = _tensors(module)
    return {name: copy.deepcopy(value) for name, value in module.state_dict().items() if name not in known}


def changed_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names of the values that are not what they were, came or went."""
    return [name for name in {**before, **now} if not _equal(before.get(name), now.get(name))]


def attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of the module and its submodules by name, parameters, buffers and submodules apart."""
    return {
        f"{prefix}.{name}" if prefix else name: value
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
    }


@contextmanager
def noted_traces(module: nn.Module) -> Iterator[list[str]]:
    """Inside, attributes of the module may change; on leaving, the list has the names of those that did."""
    names: list[str] = []
    values = attributes(module)  # held, so that no new object can have the address of one of them
    before = {name: _fingerprint(value) for name, value in values.items()}
    yield names
    now = {name: _fingerprint(value) for name, value in attributes(module).items()}
    names += sorted(name for name in {**before, **now} if before.get(name) != now.get(name))


def _fingerprint(value: Any, depth: int = 3) -> Any:
    """Differs if something was put into, taken out of or written to a value; other libraries' objects are not seen."""
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, int | float | str | None):
        return value
    if isinstance(value, list | dict | set | tuple) and depth:
        return id(value), tuple(_fingerprint(item, depth - 1) for item in _items(value))
    return id(value)


def escaped_tensors(module: nn.Module) -> list[str]:
    """Names of the attributes that hold tensors of a finished vmap, which nothing can read."""
    return sorted(
        name for name, value in attributes(module).items() if any(_is_batched(tensor) for tensor in _tensors_in(value))
    )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _keep(value: Any, kept: dict[int, tuple[Any, Any]]) -> None:
    if id(value) in kept or isinstance(value, nn.Parameter):
        return
    if isinstance(value, Tensor):
        kept[id(value)] = (value, value.detach().clone())
    elif isinstance(value, list | dict | set | tuple):
        kept[id(value)] = (value, _shallow_copy(value))
        for item in _items(value):
            _keep(item, kept)


def _put_back(holder: Any, content: Any) -> None:
    if isinstance(holder, Tensor):
        if not _same(holder, content):
            with torch.no_grad():
                holder.copy_(content)
    elif isinstance(holder, list):
        holder[:] = content
    elif isinstance(holder, dict | set) and not _holds_the_same(holder, content):
        holder.clear()
        holder.update(content)


def _shallow_copy(value: Any) -> Any:
    kind = next(kind for kind in (list, dict, set, tuple) if isinstance(value, kind))
    return kind(value)


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _holds_the_same(holder: Any, content: Any) -> bool:
    if isinstance(holder, set):
        return holder == content
    return list(holder) == list(content) and all(holder[key] is content[key] for key in content)


def _same(tensor: Tensor | None, values: Tensor | None) -> bool:
    if tensor is None or values is None or tensor.shape != values.shape or tensor.dtype != values.dtype:
        return False
    # A NaN that stays is not a change.
    return torch.equal(tensor, values) or bool(((tensor == values) | ((tensor != tensor) & (values != values))).all())


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return _same(first, second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(_equal(a, b) for a, b in zip(first, second, strict=True))
    try:
        return pickle.dumps(first) == pickle.dumps(second)
    except Exception:  # what cannot be compared may have changed
        return False


def _is_batched(tensor: Tensor) -> bool:
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def _tensors_in(value: Any, seen: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | dict | set | tuple) and id(value) not in seen:
        for item in _items(value):
            yield from _tensors_in(item, seen | {id(value)})
