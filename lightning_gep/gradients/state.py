"""What training_step may do to a module: nothing to parameters and buffers, and whatever else it does is put back."""

import copy
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.snapshot import Snapshot, reachable, same_value


@contextmanager
def untouched(*roots: Any) -> Iterator[list[str]]:
    """On leaving, everything in the roots holds what it held before; see `reachable`.

    Metrics are not updated, lists that collect outputs do not grow, hooks that were added are gone. The list then has
    the names of what was written to inside.
    """
    names: list[str] = []
    before = Snapshot(reachable(*roots))
    try:
        yield names
    finally:
        names += sorted({*before.written(), *before.put_back()})


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """The whole module in training or evaluation mode; each part returns to the mode it had."""
    with ExitStack() as restored:
        for part in module.modules():
            restored.callback(setattr, part, "training", part.training)
        module.train(training)
        yield


@contextmanager
def state_unchanged(module: nn.Module, *, or_written: bool = False) -> Iterator[None]:
    """Raises ConfigurationError on leaving if a parameter, a buffer or other saved state has changed.

    Values are compared, so writing through `.data`, which autograd does not see, is found too; with `or_written` also
    writing what was there before. After any error parameters and buffers hold what they did before: a checkpoint saved
    then would release what was written.
    """
    tensors = registered(module)
    before, known = Snapshot(tensors), {name for name, _ in tensors}
    extra = copy.deepcopy(_extra_state(module, known))
    try:
        yield
    except GeneratorExit:  # closed, perhaps much later, when the weights have moved on
        raise
    except BaseException:  # Ctrl-C too, after which a checkpoint is saved
        before.put_back()
        raise
    written = before.written() if or_written else []
    changed = before.put_back() or written
    now = _extra_state(module, known)
    changed += [name for name in {**extra, **now} if not same_value(extra.get(name), now.get(name))]
    if changed:
        raise ConfigurationError(
            f"training_step changes {', '.join(changed)}: what it computes there from the records would be released "
            "without noise. Remove it (for norm layers: track_running_stats=False; for masked weights: compute with "
            "self.weight * self.mask instead of writing to self.weight), or freeze it with .eval(). A "
            "buffer that is the same for all records, such as a count of steps, may stay; averages of weights can be "
            "updated in on_train_batch_end."
        )


def registered(module: nn.Module) -> list[tuple[str, Any]]:
    """Parameters and buffers by name, and the dicts in which the module and its parts keep them."""
    parts = [(f"{name}.", part) for name, part in module.named_modules()]
    return [
        *((name, held) for name, part in parts for held in (part._parameters, part._buffers)),
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def unregistered(module: nn.Module, *others: Any) -> Iterator[tuple[str, Any]]:
    """All that is reached from the module and other roots, except what is registered in the module."""
    apart = {id(value) for _, value in registered(module)}
    return ((name, value) for name, value in reachable(module, *others) if id(value) not in apart)


def _extra_state(module: nn.Module, known: Container[str]) -> dict[str, Any]:
    """What a checkpoint holds beside the tensors that are known: states of metrics, extra state, new tensors."""
    return {name: value for name, value in module.state_dict().items() if name not in known}


def changed_alike(module: nn.Module, runs: Iterable[Callable[[], object]]) -> tuple[str, ...]:
    """Names of the buffers that all runs, each from the same state, change to the same values; no trace is left."""
    outcomes = []
    for run in runs:
        with untouched(module):
            before = {name: buffer.clone() for name, buffer in module.named_buffers()}
            run()
            now = {name: buffer.clone() for name, buffer in module.named_buffers() if name in before}
            outcomes.append({name: value for name, value in now.items() if not same_value(value, before[name])})
    first, *others = outcomes
    return tuple(name for name, value in first.items() if all(same_value(other.get(name), value) for other in others))


@contextmanager
def buffers_copied(module: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Inside, these buffers are copies of themselves: what is written to them is lost."""
    with ExitStack() as restored:
        for path, _, name in (full.rpartition(".") for full in names):
            part = module.get_submodule(path)
            original = getattr(part, name)
            restored.callback(setattr, part, name, original)
            setattr(part, name, original.clone())
        yield
