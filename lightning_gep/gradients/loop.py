"""Per-sample gradients, one record at a time: slow, and right for whatever autograd can differentiate."""

from typing import Any

import torch
from torch import Tensor

from lightning_gep.gradients.batches import take
from lightning_gep.gradients.interface import Backend
from lightning_gep.gradients.plain import plain_gradient


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
