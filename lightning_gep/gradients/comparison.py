"""How far gradients are from what they should be, and whether rounding explains it."""

from typing import Any

import torch
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients.interface import LossFunction

TOLERANCES, HALF_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}, 5e-2
GROSS_ERROR = 0.2
"""Rounding may push a few activations of a single record across a kink, which moves its gradient by no more."""
SHARE_OF_ROW = 0.1
"""A parameter's gradient may be zero by cancellation, with rounding errors of larger numbers: each parameter is
forgiven this share of what the whole gradient is forgiven."""
SHARE_OF_LARGEST = 1e-3
"""The same for a record whose whole gradient is near zero, as a share of the largest among the records."""


def tolerance_of(module: nn.Module, loss_function: LossFunction, batch: Any) -> float:
    """Largest relative difference that rounding can explain, given the coarsest dtype on the way to the loss.

    Autocast inside the loss is seen by what it keeps for the backward pass.
    """
    seen = {p.dtype for p in module.parameters()}

    def note(tensor: Tensor) -> Tensor:
        seen.add(tensor.dtype)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss_function(batch)
    return max(TOLERANCES.get(dtype, HALF_TOLERANCE) for dtype in seen if dtype.is_floating_point)


def close(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Whether two vectors are equal up to rounding, relative to the larger of them."""
    scale = max(first.norm().item(), second.norm().item())
    return (first - second).norm().item() <= tolerance * scale


def disagreement(rows: Tensor, right: Tensor, groups: ParameterGroups, tolerance: float) -> str | None:
    """Where per-sample gradients differ most from the right ones, in words, if by more than rounding."""
    if rows.shape != right.shape:
        return f"gave gradients of shape {tuple(rows.shape)} where {tuple(right.shape)} is right"
    size = _magnitudes(right, groups)
    row = size.norm(dim=1, keepdim=True)
    errors = _magnitudes(rows - right, groups) / (size + SHARE_OF_ROW * row + SHARE_OF_LARGEST * row.max())
    errors = errors.nan_to_num(nan=torch.inf)
    # What a backend drops is missing for every record.
    if bool((errors.median(dim=0).values <= tolerance).all()) and bool((errors <= max(GROSS_ERROR, tolerance)).all()):
        return None
    parameter = list(groups.shapes)[int(errors.amax(dim=0).argmax())]
    return f"gave gradients that differ by {errors.max().item():.2g} of their size in {parameter}"


def _magnitudes(rows: Tensor, groups: ParameterGroups) -> Tensor:
    """The norm of every parameter's part of every row (n × number of parameters)."""
    parts = rows.split([shape.numel() for shape in groups.shapes.values()], dim=1)
    return torch.stack([part.norm(dim=1) for part in parts], dim=1)
