"""nn.RNN, nn.LSTM and nn.GRU under torch.func: kernels that can be vectorised, and no swapped weights kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

KERNELS = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


@contextmanager
def vectorised_recurrence(module: nn.Module) -> Iterator[None]:
    """Makes the recurrent layers of the module work under vmap and functional_call; costs nothing if it has none."""
    layers: list[Any] = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    if not layers:
        yield
        return
    # A layer remembers the weights of its last call; those swapped in must not outlive the swap.
    weights = [(layer._flat_weights, layer._flat_weight_refs) for layer in layers]
    try:
        with _Vectorised():
            yield
    finally:
        for layer, (flat, references) in zip(layers, weights, strict=True):
            layer._flat_weights, layer._flat_weight_refs = flat, references


class _Vectorised(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__name__", "") not in KERNELS or _is_packed(args):
            return function(*args, **(kwargs or {}))
        inputs, state, *rest = args
        # The fused kernels cannot be vectorised; vmap would run them record by record.
        with _without(torch.backends.mkldnn), _without(torch.backends.cudnn):
            return function(inputs, _for_each_record(state, inputs), *rest, **(kwargs or {}))


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
    """Whether these are the arguments for packed sequences: then the second holds sizes."""
    return isinstance(args[1], Tensor) and not args[1].is_floating_point()


def _for_each_record(state: Any, inputs: Tensor) -> Any:
    """The state with the hidden batch dimension of the inputs: it is written in place, so zeros must have it too."""
    if isinstance(state, tuple | list):
        return tuple(_for_each_record(part, inputs) for part in state)
    return state + torch.zeros_like(inputs).sum().to(state.dtype)
