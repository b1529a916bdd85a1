"""What a module holds: put back after trial runs, and compared."""

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.snapshot import Snapshot, same_tensor, write_tensor


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Whatever runs inside leaves no trace in the module, except in its parameters; see `Snapshot` for its reach.

    On leaving, the modes, buffers, tensors and containers of the module and its submodules hold what they held before:
    metrics are not updated, lists that collect outputs do not grow.
    """
    before = Snapshot(module, apart=module.parameters())
    try:
        yield
    finally:
        before.put_back()


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
            if not same_tensor(p, values):
                write_tensor(p, values)


@contextmanager
def state_unchanged(module: nn.Module) -> Iterator[None]:
    """Raises ConfigurationError on leaving if a parameter, a buffer or what else a checkpoint holds has changed.

    Values are compared, so writing through `.data`, which autograd does not see, is found too. After any error
    parameters and buffers hold what they did before: a checkpoint saved then would release what was written.
    """
    kept = [(held, dict(held)) for held in (*registers(module), *(part._modules for part in module.modules()))]
    tensors, before, beside = parameters_and_buffers(module), named_tensors(module), saved_beside_tensors(module)
    try:
        yield
        check_unchanged(module, before, beside)
    except GeneratorExit:  # closed, perhaps long after, when the weights have moved on
        raise
    except BaseException:  # Ctrl-C too, after which a checkpoint is saved
        for held, content in kept:
            held.clear()
            held.update(content)
        for name, tensor in tensors.items():
            if not _same(tensor, before[name]):
                tensor.data = before[name]
        raise


def changed_alike(module: nn.Module, runs: Iterable[Callable[[], object]]) -> tuple[str, ...]:
    """Names of the buffers that all runs, each from the same state, change to the same values; no trace is left."""
    outcomes = []
    for run in runs:
        with untouched(module):
            before = named_tensors(module)
            run()
            after = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        outcomes.append({name: value for name, value in after.items() if not _same(value, before.get(name))})
    first, *others = outcomes
    return tuple(name for name, value in first.items() if all(_same(other.get(name), value) for other in others))


@contextmanager
def buffers_copied(module: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Inside, these buffers are copies of themselves: what is written to them is lost."""
    owners = [(module.get_submodule(owner)._buffers, name) for owner, _, name in (n.rpartition(".") for n in names)]
    originals = [buffers[name] for buffers, name in owners]
    for (buffers, name), original in zip(owners, originals, strict=True):
        buffers[name] = None if original is None else original.clone()
    try:
        yield
    finally:
        for (buffers, name), original in zip(owners, originals, strict=True):
            buffers[name] = original


def registers(module: nn.Module) -> list[dict[str, Any]]:
    """The dicts in which the module and its parts have their parameters and buffers."""
    return [held for part in module.modules() for held in (part._parameters, part._buffers)]


def check_unchanged(module: nn.Module, before: Mapping[str, Tensor], beside: Mapping[str, Any]) -> None:
    """Raises ConfigurationError unless the module holds what `named_tensors` and `saved_beside_tensors` told before."""
    changed = changed_tensors(module, before) + changed_values(beside, saved_beside_tensors(module))
    if changed:
        raise ConfigurationError(
            f"training_step changes {', '.join(changed)}: what it computes there from the records would be released "
            "without noise. Remove it (for norm layers: track_running_stats=False), or freeze it with .eval(). A "
            "buffer that is the same for all records, such as a count of steps, may stay; averages of weights can be "
            "updated in on_train_batch_end."
        )


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in parameters_and_buffers(module).items()}


def changed_tensors(module: nn.Module, before: Mapping[str, Tensor]) -> list[str]:
    """Names of the parameters and buffers that do not hold what they did, came or went."""
    now = parameters_and_buffers(module)
    return [name for name in {**before, **now} if not _same(now.get(name), before.get(name))]


def saved_beside_tensors(module: nn.Module) -> dict[str, Any]:
    """Copies of what a checkpoint would hold beside parameters and buffers: states of metrics, extra state."""
    known = parameters_and_buffers(module)
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


def parameters_and_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that the module has registered, by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _same(tensor: Tensor | None, values: Tensor | None) -> bool:
    return tensor is not None and values is not None and same_tensor(tensor, values)


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
