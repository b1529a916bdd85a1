"""Per-sample gradients, one record at a time: slow, and correct for whatever autograd can differentiate."""

from typing import Any

import torch
from torch import Tensor

from lightning_gep.gradients.interface import Backend, scalar


class LoopGradients(Backend):
    """The loss is called on batches of one record, in order."""

    name = "loop"
    together = False

    def rows(self, batch: Any, out: Tensor) -> None:
        """The gradient of a single record."""
        assert len(out) == 1
        out[0] = self.gradient(batch)

    def gradient(self, batch: Any) -> Tensor:
        """The gradient (p) of the loss on the whole batch, without touching `.grad`; zero for unused parameters."""
        parameters = self.parameters()
        with torch.enable_grad():
            loss = scalar(self.loss_function(batch))
        if not loss.requires_grad:
            return self.groups.flatten({name: torch.zeros_like(p) for name, p in parameters.items()})
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
        return self.groups.flatten(dict(zip(parameters, gradients, strict=True)))
