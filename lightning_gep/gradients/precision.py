"""How much of a difference rounding can explain, and double precision for the cases where that is too much."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lightning_gep.gradients.batches import record_leaves, replace_leaves
from lightning_gep.gradients.interface import LossFunction
from lightning_gep.gradients.state import untouched

NARROW = (torch.float32, torch.float16, torch.bfloat16)
CASTS = {"float", "half", "bfloat16"}
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4}
HALF_TOLERANCE = 5e-2


@contextmanager
def doubled(module: nn.Module) -> Iterator[None]:
    """The module's parameters, buffers and tensors in float64; on leaving, those it had before, `.grad` included.

    The parameters stay the same objects, so that whoever holds one sees its values in float64.
    """
    parameters = [(p, p.data, p.grad) for p in module.parameters() if p.dtype in NARROW]
    with untouched(module):
        try:
            for p, data, _ in parameters:
                p.grad = None
                p.data = data.double()
            for part in module.modules():
                _double_tensors(part._buffers)
                _double_tensors(vars(part))
            yield
        finally:
            for p, data, gradient in parameters:
                p.data = data
                p.grad = gradient


def widened(loss_function: LossFunction) -> LossFunction:
    """The loss in float64, also where its code asks for less; for a module that is `doubled`.

    Autocast leaves float64 alone, so it has no effect.
    """

    def loss(batch: Any) -> Tensor:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with _Widened():
                return loss_function(replace_leaves(batch, [_wide(leaf) for leaf in record_leaves(batch)]))
        finally:
            torch.set_default_dtype(before)

    return loss


def tolerance_of(module: nn.Module, loss_function: LossFunction, batch: Any) -> float:
    """Largest relative difference that rounding can explain, given the coarsest dtype on the way to the loss.

    Autocast inside the loss is seen as well as parameters of low precision.
    """
    seen = {p.dtype for p in module.parameters()}
    with _Dtypes(seen), torch.no_grad():
        loss_function(batch)
    return max(TOLERANCES.get(dtype, HALF_TOLERANCE) for dtype in seen if dtype.is_floating_point)


def _double_tensors(tensors: dict[str, Any]) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            tensors[name] = _wide(tensor)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype in NARROW else value


class _Widened(TorchFunctionMode):
    """Float64 wherever a function is asked for a narrower dtype by name."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__name__", "") in CASTS:
            return args[0].double()
        named = {name: _wide_dtype(value) for name, value in (kwargs or {}).items()}
        return function(*(_wide_dtype(arg) for arg in args), **named)


def _wide_dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


class _Dtypes(TorchFunctionMode):
    """Notes the dtype of every tensor that a torch function returns."""

    def __init__(self, seen: set[torch.dtype]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self.seen.add(value.dtype)
        return result
