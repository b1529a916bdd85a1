"""Per-sample gradients, one record at a time: slow, and correct for whatever autograd can differentiate."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients.batches import take
from lightning_gep.gradients.interface import Backend, LossFunction, scalar


class LoopGradients(Backend):
    """The loss is called on batches of one record, in order."""

    name = "loop"
    together = False

    def rows(self, batch: Any, size: int, out: Tensor | None = None) -> Tensor:
        """The gradients of a batch of `size` > 0 records (size × p)."""
        parameters = self.parameters()
        records = (take(batch, slice(i, i + 1)) for i in range(size))
        rows = [plain_gradient(self.loss_function, parameters, self.groups, record) for record in records]
        return torch.stack(rows, out=out)


def plain_gradient(
    loss_function: LossFunction, parameters: Mapping[str, nn.Parameter], groups: ParameterGroups, batch: Any
) -> Tensor:
    """The gradient (p) of the loss on the whole batch, without touching `.grad`; zero for unused parameters."""
    with torch.enable_grad():
        loss = scalar(loss_function(batch))
    if not loss.requires_grad:
        return groups.flatten({name: torch.zeros_like(p) for name, p in parameters.items()})
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return groups.flatten(dict(zip(parameters, gradients, strict=True)))
