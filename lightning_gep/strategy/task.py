"""What is to be trained, how and where: what everything else about a fit is decided from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.privacy.run_size import limited, total_steps
from lightning_gep.strategy.data import Records, loader_options
from lightning_gep.strategy.persons import PerPerson, single_records
from lightning_gep.strategy.processes import Processes
from lightning_gep.strategy.settings import CostSettings, PrivacySettings


@dataclass(frozen=True)
class Task:
    """A fit as it was asked for."""

    settings: PrivacySettings
    cost: CostSettings
    trainer: Trainer
    module: LightningModule
    loader: DataLoader[Any]
    processes: Processes
    transfer: Callable[[Any], Any]
    """What Lightning does to a batch before training_step gets it."""
    rows_needed: bool = False
    """Whether someone looks at the gradients of single records, whatever the mechanism needs."""

    @property
    def persons(self) -> PerPerson | None:
        """The training data, if its items are persons."""
        return self.loader.dataset if isinstance(self.loader.dataset, PerPerson) else None

    @property
    def seed(self) -> int | None:
        """Of everything random, for tests."""
        return None if self.settings.private else self.settings.seed

    @property
    def steps_per_epoch(self) -> int:
        """In each process."""
        return -(-len(self.loader) // self.processes.world_size)

    @property
    def steps(self) -> int | None:
        """Of the whole run; None if it has no end."""
        return planned_steps(self.trainer, self.steps_per_epoch)

    @cached_property
    def groups(self) -> ParameterGroups:
        """The trainable parameters."""
        return ParameterGroups.from_module(self.module, self.cost.groups)

    @property
    def size(self) -> dict[str, Any]:
        """What a plan is made of beside the settings and the number of steps."""
        return {
            "num_records": len(self.loader.dataset),  # type: ignore[arg-type]
            "batch_size": (self.loader.batch_size or 1) * self.processes.world_size,
            "num_parameters": self.groups.num_parameters,
            "unit": "record" if self.persons is None else f"person ({self.persons.unit})",
        }

    def single_records(self) -> DataLoader[Any]:
        """What checks read: single records, also of persons, whose values errors do not show."""
        own: dict[str, Any] = {"batch_size": self.loader.batch_size, **loader_options(self.loader)}
        records = Records(single_records(self.loader), reveal_errors=self.settings.log_nonprivate)
        return DataLoader(records, shuffle=True, **own)


def planned_steps(trainer: Trainer, steps_per_epoch: int) -> int | None:
    """The total number of steps of a run, or None if it has no end."""
    return total_steps(limited(steps_per_epoch, trainer.limit_train_batches), trainer.max_epochs, trainer.max_steps)
