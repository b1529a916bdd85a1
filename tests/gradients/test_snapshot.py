from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from lightning_gep.gradients.snapshot import Snapshot, reachable


class Plain:
    shared: ClassVar[list[float]] = []
    best = 1.0

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def note(self, *_: object) -> None:
        self.seen = True


@dataclass(slots=True)
class Slotted:
    value: Any


def counting(function: Any) -> Any:
    """As decorators do that keep statistics."""
    calls: list[Any] = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return function(*args)

    counted.calls = calls  # type: ignore[attr-defined]
    return counted


class Methods:
    @staticmethod
    @counting
    def static() -> None: ...

    @classmethod
    @counting
    def of_class(cls) -> None: ...

    @property
    @counting
    def attribute(self) -> None: ...

    @staticmethod
    def default(calls: list[int] = []) -> None:  # noqa: B006
        calls.append(1)


class History(list[float]):
    best = 1.0


def enclosing(values: list[float]) -> Any:
    total = 0.0

    def add(value: float) -> None:
        nonlocal total
        total += value
        values.append(value)

    add.total = lambda: total  # type: ignore[attr-defined]
    return add


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.tracker = Plain(losses=[], inner=Plain(value=1))
        self.slotted = Slotted(1)
        self.namespace = SimpleNamespace(value=1)
        self.array = np.zeros(3)
        self.queue = deque([1], maxlen=4)
        self.counts, self.default, self.ordered = Counter("ab"), defaultdict(list), OrderedDict(a=1, b=2)
        self.bytes, self.tuple, self.set = bytearray(b"ab"), ([],), {1}
        self.hidden = [nn.BatchNorm1d(2)]
        self.function, self.partial = enclosing([]), partial(enclosing([]))
        self.methods, self.history = Methods(), History([1.0])
        self.loop = [self]
        self.data = TensorDataset(torch.zeros(2))


CHANGES = {
    "object": lambda m: m.tracker.losses.append(1.0),
    "object in an object": lambda m: setattr(m.tracker.inner, "value", 2),
    "new attribute": lambda m: setattr(m.tracker, "last", 2),
    "slot": lambda m: setattr(m.slotted, "value", 2),
    "namespace": lambda m: setattr(m.namespace, "value", 2),
    "array": lambda m: m.array.__setitem__(0, 2.0),
    "deque": lambda m: m.queue.append(2),
    "counter": lambda m: m.counts.update("a"),
    "defaultdict": lambda m: m.default["x"].append(1),
    "order": lambda m: m.ordered.move_to_end("a"),
    "bytes": lambda m: m.bytes.extend(b"c"),
    "in a tuple": lambda m: m.tuple[0].append(1),
    "set": lambda m: m.set.add(2),
    "module in a list": lambda m: m.hidden[0](torch.randn(4, 2)),
    "parameter in a list": lambda m: m.hidden[0].weight.data.add_(1.0),
    "closure": lambda m: m.function(2.0),
    "partial": lambda m: m.partial(2.0),
    "class attribute": lambda m: Plain.shared.append(1.0),
    "class": lambda m: setattr(Plain, "best", 2.0),
    "new in the class": lambda m: setattr(Plain, "later", 2.0),
    "static method": lambda m: m.methods.static(),
    "class method": lambda m: m.methods.of_class(),
    "property": lambda m: m.methods.attribute,
    "default of a static method": lambda m: m.methods.default(),
    "new static method": lambda m: setattr(Methods, "later", staticmethod(lambda: 2.0)),
    "attribute of a list": lambda m: setattr(m.history, "best", 2.0),
    "class of a list": lambda m: setattr(History, "best", 2.0),
    "mode": lambda m: m.eval(),
    "hook": lambda m: m.layer.register_forward_hook(m.tracker.note),
    "attribute of a parameter": lambda m: setattr(m.layer.weight, "last", 2),
    "gradient": lambda m: m.layer(torch.ones(1, 2)).sum().backward(),
    "replaced part": lambda m: setattr(m, "layer", nn.Linear(2, 2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_is_put_back_wherever_it_is(change: Any) -> None:
    model = Model()
    before = Snapshot(reachable(model))
    assert not before.put_back()
    change(model)
    assert before.put_back()
    assert not before.put_back()
    assert model.tracker.losses == []
    assert vars(model.tracker.inner) == {"value": 1}
    assert (model.slotted.value, model.namespace.value, Plain.best) == (1, 1, 1.0)
    assert not model.array.any()
    assert (list(model.queue), model.counts, dict(model.default)) == ([1], Counter("ab"), {})
    assert list(model.ordered) == ["a", "b"]
    assert (model.bytes, model.tuple, model.set) == (b"ab", ([],), {1})
    assert not model.hidden[0].running_mean.any()
    assert model.function.total() == 0.0
    assert Plain.shared == []
    decorated = vars(Methods)
    assert not any(own.calls for own in (Methods.static, decorated["of_class"].__func__, decorated["attribute"].fget))
    assert not hasattr(Methods, "later")
    assert Methods.default.__defaults__ == ([],)
    assert (model.history, model.history.best, History.best) == ([1.0], 1.0, 1.0)
    assert model.training


def test_what_others_look_after_is_followed_but_not_put_back() -> None:
    model = Model()
    before = Snapshot(pair for pair in reachable(model) if pair[1] is not model.layer.weight)
    model.layer.weight.data.fill_(3.0)
    model.layer.weight.last = 2  # type: ignore[attr-defined]
    model.layer.bias.data.fill_(3.0)
    before.put_back()
    assert (model.layer.weight == 3.0).all()
    assert not hasattr(model.layer.weight, "last")
    assert not (model.layer.bias == 3.0).any()


def test_what_a_hook_keeps_is_reached_through_the_hook() -> None:
    layer, keeper = nn.Linear(2, 2), Plain(inputs=[])
    layer.register_forward_hook(lambda part, inputs, output: keeper.inputs.append(inputs))
    layer.register_forward_pre_hook(keeper.note)
    before = Snapshot(reachable(layer))
    layer(torch.ones(1, 2))
    assert before.put_back()
    assert vars(keeper) == {"inputs": []}


def test_data_sets_are_not_followed() -> None:
    model = Model()
    before = Snapshot(reachable(model))
    model.data.tensors[0].fill_(1.0)
    assert not before.put_back()
