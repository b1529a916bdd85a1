"""A training batch on its way from the loader to the strategy."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_gep.gradients.withheld import withheld
from lightning_gep.strategy.poisson_loader import EmptyBatch

HOOK = "_on_before_batch_transfer"
"""What Lightning calls first; it finds the user's hook in the module or in the datamodule."""


class TransferGuard:
    """Stands before `on_before_batch_transfer` while a module is trained.

    Guarantee: the hook gets no empty batch, which no code is made for, and what it raises on private records is told
    without their values.
    """

    def __init__(self, module: LightningModule, trainer: Trainer, *, reveal_errors: bool) -> None:
        self.module, self.trainer, self.reveal_errors = module, trainer, reveal_errors
        vars(module)[HOOK] = self

    def __call__(self, batch: Any, dataloader_idx: int = 0) -> Any:
        """The batch as the hook returns it; an empty one without the list that a list of loaders puts it into."""
        if isinstance(batch, EmptyBatch) or (isinstance(batch, list) and any(isinstance(b, EmptyBatch) for b in batch)):
            return EmptyBatch()
        reveal = self.reveal_errors or not self.trainer.training
        return withheld(
            lambda: LightningModule._on_before_batch_transfer(self.module, batch, dataloader_idx),
            "on_before_batch_transfer",
            reveal=reveal,
        )

    def __reduce__(self) -> tuple[Any, tuple[Any, str]]:
        return getattr, (self.module, HOOK)  # a module that is saved or copied leaves the training behind

    def remove(self) -> None:
        """Let Lightning call the hook itself again."""
        vars(self.module).pop(HOOK, None)


def in_a_list(trainer: Trainer) -> bool:
    """Whether the train loader was given to `fit` in a list of one; its batches then come in such a list, too."""
    given: Any = trainer.fit_loop._data_source.instance
    return isinstance(given, list | tuple) and len(given) == 1
