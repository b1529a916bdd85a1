"""The ordinary gradient of a loss, as a flat vector and without touching `.grad`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients.interface import LossFunction, scalar


def plain_gradient(
    loss_function: LossFunction, parameters: Mapping[str, nn.Parameter], groups: ParameterGroups, batch: Any
) -> Tensor:
    """The gradient (p) of the loss on the whole batch; zero where the loss does not depend on a parameter."""
    with torch.enable_grad():
        loss = scalar(loss_function(batch))
    return groups.flatten(with_zeros(gradients_or_none(loss, parameters), parameters))


def backward_gradient(
    loss_function: LossFunction, parameters: Mapping[str, nn.Parameter], groups: ParameterGroups, batch: Any
) -> Tensor:
    """The same as `plain_gradient`, but by the loss's own `backward()`; `.grad` is put back."""
    before = {name: p.grad for name, p in parameters.items()}
    try:
        for p in parameters.values():
            p.grad = None
        with torch.enable_grad():
            loss = scalar(loss_function(batch))
        if loss.requires_grad:
            loss.backward()
        return groups.flatten(with_zeros({name: p.grad for name, p in parameters.items()}, parameters))
    finally:
        for name, p in parameters.items():
            p.grad = before[name]


def gradients_or_none(loss: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor | None]:
    """The gradient by parameter; None where the loss does not depend on it."""
    if not loss.requires_grad:
        return dict.fromkeys(parameters)
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, gradients, strict=True))


def with_zeros(gradients: Mapping[str, Tensor | None], parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients with zeros in the place of None."""
    return {
        name: torch.zeros_like(parameters[name]) if gradient is None else gradient.detach()
        for name, gradient in gradients.items()
    }
