"""Canaries: records whose gradients the audit chooses, which travel through loader, sampling, clipping and noise.

A canary is a copy of an ordinary record, at a place of its own behind all records; its per-sample gradient is replaced
by the one chosen. A canary that is left out has the gradient zero, which is the same as a data set without it: N and
the expected batch size are public constants.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_gep.strategy.data import loader_options


class Canaries:
    """`count` canaries, their gradients, and which of them are in the data; both may change between steps."""

    def __init__(self, count: int) -> None:
        self.included = torch.zeros(count)
        self._gradients: Tensor | None = None

    def __len__(self) -> int:
        return len(self.included)

    def use(self, gradients: Tensor) -> None:
        """Let the first canaries have these gradients (n × p); the others have none."""
        rest = gradients.new_zeros(len(self) - len(gradients), gradients.shape[1])
        self._gradients = torch.cat([gradients, rest])

    def replace(self, rows: Tensor, numbers: Tensor) -> None:
        """Give the rows of canaries their gradients; `numbers` are those of the canaries, negative for other rows."""
        own = numbers >= 0
        chosen = numbers[own]
        rows[own] = 0.0
        if self._gradients is not None:
            rows[own] = (self.included[chosen, None] * self._gradients[chosen]).to(rows)


class WithCanaries(Dataset[Any]):
    """The records of a data set, then as many canaries as asked for, which look like the first records."""

    def __init__(self, records: Any, canaries: int) -> None:
        self.records, self.canaries = records, canaries

    def __len__(self) -> int:
        return len(self.records) + self.canaries

    def __getitem__(self, index: int) -> Any:
        return self.records[index % len(self.records)]


class CanaryLoader(DataLoader[Any]):
    """A loader with canaries; an epoch can be given another number of steps than fits the batch size."""

    def __init__(
        self, like: DataLoader[Any], canaries: int, records: Any, batch_size: int, steps: int | None = None
    ) -> None:
        self.steps = steps
        data = WithCanaries(records, canaries)
        super().__init__(data, batch_size=batch_size, drop_last=like.drop_last, **loader_options(like))

    def __len__(self) -> int:
        return super().__len__() if self.steps is None else self.steps
