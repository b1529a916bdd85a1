"""What lets ordinary training steps run under torch.func: recurrent kernels, stubbed metrics and stubbed values."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

KERNELS = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
VALUES = {"item", "__float__"}
STAND_IN = 1.0
"""What `.item()` and `float()` return for a tensor with a value for every record; log, exp and division take it."""
OTHER_STAND_INS = (0.0, float("inf"), float("-inf"), 1e4)
"""Tried on public records: if one of them changes the gradients, training_step does more with the value than log it."""


class Vectorising(TorchFunctionMode):
    """Inside, recurrent layers can be vectorised, and `.item()` and `float()` of a record's tensor give a stand-in."""

    def __init__(self, stand_in: float = STAND_IN) -> None:
        super().__init__()
        self.stand_in = stand_in
        self.stood_in = 0
        """How often a value was asked for."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name in KERNELS and not _is_packed(args):
            inputs, state, *rest = args
            # The fused kernels cannot be vectorised; vmap would run them record by record.
            with _without(torch.backends.mkldnn), _without(torch.backends.cudnn):
                return function(inputs, _for_each_record(state, inputs), *rest, **kwargs)
        if name not in VALUES:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            self.stood_in += 1
            return self.stand_in


@contextmanager
def metrics_stubbed(module: nn.Module) -> Iterator[None]:
    """Inside, metrics of torchmetrics in the module tree compute nothing and return zeros."""
    torchmetrics: Any = sys.modules.get("torchmetrics")
    kinds = () if torchmetrics is None else (torchmetrics.Metric, torchmetrics.MetricCollection)
    metrics = [part for part in module.modules() if isinstance(part, kinds)]
    before = [dict(vars(metric)) for metric in metrics]
    for metric in metrics:
        vars(metric).update(dict.fromkeys(("forward", "update", "compute"), _stub(metric, torchmetrics)))
    try:
        yield
    finally:
        _attributes_back(metrics, before)


def _stub(metric: Any, torchmetrics: Any) -> Any:
    if isinstance(metric, torchmetrics.MetricCollection):
        return lambda *_, **__: {name: torch.zeros(()) for name in metric}
    return lambda *_, **__: torch.zeros(())


@contextmanager
def recurrent_layers_kept(module: nn.Module) -> Iterator[None]:
    """A recurrent layer remembers the weights of its last call; those swapped in must not outlive the swap."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    before = [dict(vars(layer)) for layer in layers]
    try:
        yield
    finally:
        _attributes_back(layers, before)


def _attributes_back(owners: Sequence[nn.Module], before: list[dict[str, Any]]) -> None:
    for owner, attributes in zip(owners, before, strict=True):
        vars(owner).clear()
        vars(owner).update(attributes)


@contextmanager
def _without(library: Any) -> Iterator[None]:
    """Not the library's own `flags`, which sets its precision as well."""
    before = library.enabled
    library.enabled = False
    try:
        yield
    finally:
        library.enabled = before


def _is_packed(args: tuple[Any, ...]) -> bool:
    """Whether these are the arguments for packed sequences, of which the second holds batch sizes."""
    return isinstance(args[1], Tensor) and not args[1].is_floating_point()


def _for_each_record(state: Any, inputs: Tensor) -> Any:
    """The state with the hidden batch dimension of the inputs: it is written in place, so zeros need it too."""
    if isinstance(state, tuple | list):
        return tuple(_for_each_record(part, inputs) for part in state)
    return state + torch.zeros_like(inputs).sum().to(state.dtype)
