"""How far gradients are from what they should be, and whether rounding explains it."""

import torch
from torch import Tensor

from lightning_gep.algorithm.groups import ParameterGroups

SHARE_OF_ROW = 0.1
"""A parameter's gradient may be zero by cancellation, with rounding errors of larger numbers: each parameter is
forgiven this share of what the whole gradient is forgiven."""
SHARE_OF_LARGEST = 1e-3
"""The same for a record whose whole gradient is near zero, as a share of the largest among the records."""


def magnitudes(rows: Tensor, groups: ParameterGroups) -> Tensor:
    """The norm of every parameter's part of every row (n × number of parameters)."""
    pieces = rows.split([shape.numel() for shape in groups.shapes.values()], dim=1)
    return torch.stack([piece.norm(dim=1) for piece in pieces], dim=1)


def relative_errors(difference: Tensor, size: Tensor) -> Tensor:
    """Magnitudes of a difference relative to those of the gradients, both n × number of parameters."""
    row = size.norm(dim=1, keepdim=True)
    return difference / (size + SHARE_OF_ROW * row + SHARE_OF_LARGEST * row.max())


def close(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Whether two vectors are equal up to rounding, relative to the larger of them."""
    scale = max(first.norm().item(), second.norm().item())
    return (first - second).norm().item() <= tolerance * scale


def disagreement(rows: Tensor, reference: Tensor, groups: ParameterGroups, tolerance: float) -> str | None:
    """Where per-sample gradients differ most from the reference, in words, if by more than rounding."""
    if rows.shape != reference.shape:
        return f"gave gradients of shape {tuple(rows.shape)} where {tuple(reference.shape)} is right"
    errors = relative_errors(magnitudes(rows - reference, groups), magnitudes(reference, groups))
    return None if bool((errors <= tolerance).all()) else f"gave gradients that differ {worst(errors, groups)}"


def worst(errors: Tensor, groups: ParameterGroups) -> str:
    """The largest error and the parameter it is in, in words."""
    by_parameter = errors.nan_to_num(nan=torch.inf).amax(dim=0)
    parameter = list(groups.shapes)[int(by_parameter.argmax())]
    return f"by {by_parameter.max().item():.2g} of their size in {parameter}"
