"""Canaries: records whose gradients the audit chooses, which travel through loader, training_step, clipping and noise.

A canary is an ordinary record with a number. For it, training_step returns a loss that is linear in the parameters, so
that its gradient is the one chosen, whatever the weights. A canary that is left out has the gradient zero, which is the
same as a data set without it: N and the expected batch size are public constants.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.strategy.data import loader_options

Numbered = tuple[Any, int]
"""A record and the number of its canary, 0 for a record that is none."""


class Canaries:
    """`count` canaries, their gradients, and which of them are in the data; both may change between steps."""

    def __init__(self, count: int) -> None:
        self.included = torch.zeros(count)
        self._gradients: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.included)

    def use(self, gradients: Tensor, groups: ParameterGroups) -> None:
        """Let the first canaries have these gradients (n × p); the others have none."""
        sizes = [shape.numel() for shape in groups.shapes.values()]
        rest = gradients.new_zeros(len(self) - len(gradients), gradients.shape[1])
        split = torch.cat([gradients, rest]).float().split(sizes, dim=1)
        self._gradients = dict(zip(groups.shapes, split, strict=True))

    def loss(self, parameters: Mapping[str, Tensor], numbers: Tensor) -> Tensor:
        """A loss whose gradient is the sum of those of the canaries with these numbers that are in the data."""
        which = (numbers - 1).clamp(0, len(self) - 1)
        weights = ((numbers > 0) & (numbers <= len(self))) * self.included.to(numbers.device)[which]
        total = weights.sum() * 0
        for name, gradients in self._gradients.items():
            self._gradients[name] = gradients.to(numbers.device)
            total = total + (weights @ self._gradients[name][which]) @ parameters[name].float().flatten()
        return total


class WithCanaries(Dataset[Numbered]):
    """The records of a data set, then as many canaries as asked for, which look like the first records."""

    def __init__(self, records: Any, canaries: int = 0) -> None:
        self.records, self.canaries = records, canaries

    def __len__(self) -> int:
        return len(self.records) + self.canaries

    def __getitem__(self, index: int) -> Numbered:
        if not 0 <= index < len(self):
            raise IndexError(index)  # which ends a loop over the records
        return self.records[index % len(self.records)], max(0, index - len(self.records) + 1)


class NumberedLoader(DataLoader[Any]):
    """A loader whose records have numbers; an epoch can be given another number of steps than fits the batch size."""

    def __init__(self, like: DataLoader[Any], canaries: int = 0, records: Any = None, **changed: Any) -> None:
        self.steps = changed.pop("steps", None)
        data = WithCanaries(like.dataset if records is None else records, canaries)
        options = {**loader_options(like), "batch_size": like.batch_size, "drop_last": like.drop_last, **changed}
        super().__init__(data, **{**options, "collate_fn": partial(_collated, like.collate_fn)})

    def __len__(self) -> int:
        return super().__len__() if self.steps is None else self.steps


def _collated(collate: Callable[[list[Any]], Any], numbered: Sequence[Numbered]) -> tuple[Any, Tensor]:
    return collate([record for record, _ in numbered]), torch.tensor([number for _, number in numbered])


@contextmanager
def canaries_in(
    module: LightningModule, canaries: Canaries, datamodule: LightningDataModule | None = None, *, frozen: bool = False
) -> Iterator[None]:
    """Inside, the module takes numbered batches, and its training_step knows the canaries; `frozen` weights stay.

    The module gets a subclass of its own class, so names of parameters, hooks and everything else stay as they are.
    """
    kind: Any = type(module)

    def hooked(name: str, batch: Any, *arguments: Any) -> Any:
        """The batch after the user's hook of this name; Lightning prefers the datamodule's."""
        in_datamodule = datamodule is not None and is_overridden(name, datamodule, LightningDataModule)
        hook = getattr(datamodule, name) if in_datamodule else getattr(super(Audited, module), name)
        records, numbers = batch
        return hook(records, *arguments), numbers

    class Audited(kind):  # type: ignore[misc]
        def training_step(self, batch: Any, *arguments: Any, **named: Any) -> Tensor:
            records, numbers = batch
            output = super().training_step(records, *arguments, **named)
            loss = output["loss"] if isinstance(output, Mapping) else output
            own = loss * (numbers == 0).to(loss).mean()  # gradients are taken record by record
            return own + canaries.loss(dict(self.named_parameters()), numbers).to(loss)

        # Lightning passes the batch index to methods that take one.
        training_step.__signature__ = inspect.signature(kind.training_step)  # type: ignore[attr-defined]

        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return hooked("on_before_batch_transfer", batch, dataloader_idx)

        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            records, numbers = hooked("transfer_batch_to_device", batch, device, dataloader_idx)
            return records, numbers.to(device)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return hooked("on_after_batch_transfer", batch, dataloader_idx)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0) if frozen else super().configure_optimizers()

    module.__class__ = Audited
    try:
        yield
    finally:
        module.__class__ = kind
