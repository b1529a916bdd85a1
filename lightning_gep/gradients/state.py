"""What a module holds: put back after trial runs, and compared.

Two private parts of torch are used here and nowhere else: the dicts in which an `nn.Module` keeps its parameters,
buffers and submodules, and the write count of a tensor (`_version`). Without the dicts nothing could be put back and
every fit would fail at once; without the write count, `noted_traces` would miss writes in place.
"""

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.snapshot import Snapshot, same_tensor, write_tensor


@contextmanager
def untouched(module: nn.Module, *, but_buffers: bool = False) -> Iterator[None]:
    """On leaving, everything in the module but its parameters holds what it held before; see `Snapshot` for its reach.

    Metrics are not updated, lists that collect outputs do not grow, hooks that were added are gone. With `but_buffers`
    buffers are left as they are, too, for `state_unchanged` to see what was written to them.
    """
    before = Snapshot(module, apart=registered(module) if but_buffers else module.parameters())
    try:
        yield
    finally:
        before.put_back()


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """The whole module in training or evaluation mode; each part returns to the mode it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


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


class SavedState:
    """Copies of what a checkpoint holds of a module: parameters, buffers, states of metrics, extra state."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.tensors = {name: tensor.detach().clone() for name, tensor in parameters_and_buffers(module).items()}
        self._others, self._writes = self._beside_tensors(), write_counts(module)

    def changes(self) -> list[str]:
        """Names of everything that has another value now, was added or was removed."""
        now = {**parameters_and_buffers(self._module), **self._beside_tensors()}
        before = {**self.tensors, **self._others}
        return [name for name in {**before, **now} if not _equal(before.get(name), now.get(name))]

    def check(self, *, writes: bool = False) -> None:
        """Raises ConfigurationError if something has changed, or with `writes` if it was only written to."""
        now = write_counts(self._module)
        changed = self.changes() or [name for name in now if writes and now[name] != self._writes.get(name)]
        if changed:
            raise ConfigurationError(
                f"training_step changes {', '.join(changed)}: what it computes there from the records would be "
                "released without noise. Remove it (for norm layers: track_running_stats=False), or freeze it with "
                ".eval(). A buffer that is the same for all records, such as a count of steps, may stay; averages of "
                "weights can be updated in on_train_batch_end."
            )

    def _beside_tensors(self) -> dict[str, Any]:
        known = parameters_and_buffers(self._module)
        return {name: copy.deepcopy(value) for name, value in self._module.state_dict().items() if name not in known}


@contextmanager
def state_unchanged(module: nn.Module) -> Iterator[None]:
    """Raises ConfigurationError on leaving if a parameter, a buffer or other saved state has changed.

    Values are compared, so writing through `.data`, which autograd does not see, is found too. After any error
    parameters and buffers hold what they did before: a checkpoint saved then would release what was written.
    """
    kept = [(held, dict(held)) for held in (*registers(module), *(part._modules for part in module.modules()))]
    tensors, before = parameters_and_buffers(module), SavedState(module)
    try:
        yield
        before.check()
    except GeneratorExit:  # closed, perhaps much later, when the weights have moved on
        raise
    except BaseException:  # Ctrl-C too, after which a checkpoint is saved
        for held, content in kept:
            held.clear()
            held.update(content)
        for name, tensor in tensors.items():
            if not same_tensor(tensor, before.tensors[name]):
                tensor.data = before.tensors[name]
        raise


def changed_alike(module: nn.Module, runs: Iterable[Callable[[], object]]) -> tuple[str, ...]:
    """Names of the buffers that all runs, each from the same state, change to the same values; no trace is left."""
    outcomes = []
    for run in runs:
        with untouched(module):
            before = SavedState(module)
            run()
            now, changed = parameters_and_buffers(module), before.changes()
            outcomes.append(
                {name: now[name].detach().clone() for name in changed if name in dict(module.named_buffers())}
            )
    first, *others = outcomes
    return tuple(name for name, value in first.items() if all(_equal(other.get(name), value) for other in others))


@contextmanager
def buffers_copied(module: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Inside, these buffers are copies of themselves: what is written to them is lost."""
    parts = [(module.get_submodule(path), name) for path, _, name in (full.rpartition(".") for full in names)]
    originals = [getattr(part, name) for part, name in parts]
    for (part, name), original in zip(parts, originals, strict=True):
        setattr(part, name, original.clone())
    try:
        yield
    finally:
        for (part, name), original in zip(parts, originals, strict=True):
            setattr(part, name, original)


def registers(module: nn.Module) -> list[dict[str, Any]]:
    """The dicts in which the module and its parts keep their parameters and buffers."""
    return [held for part in module.modules() for held in (part._parameters, part._buffers)]


def registered(module: nn.Module) -> list[Any]:
    """Parameters and buffers, and the dicts they are kept in."""
    return [*parameters_and_buffers(module).values(), *registers(module)]


def parameters_and_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that the module has registered, by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def write_counts(module: nn.Module) -> dict[str, int]:
    """How often each parameter and buffer was written to, whether that changed it or not."""
    return {name: tensor._version for name, tensor in parameters_and_buffers(module).items()}


def attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of the module and its submodules by name."""
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
        items = value.values() if isinstance(value, dict) else value
        return id(value), tuple(_fingerprint(item, depth - 1) for item in items)
    return id(value)


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return same_tensor(first, second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(_equal(a, b) for a, b in zip(first, second, strict=True))
    try:
        return pickle.dumps(first) == pickle.dumps(second)
    except Exception:  # what cannot be compared may have changed
        return False
