"""What stands between the user's hooks and private records while a module trains."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_gep.gradients.randomness import random_state_kept, renew_random_states
from lightning_gep.gradients.withheld import withheld
from lightning_gep.strategy.data import EmptyBatch
from lightning_gep.strategy.internals import TRANSFER_HOOK, on_before_batch_transfer
from lightning_gep.strategy.logs import LogGuard
from lightning_gep.strategy.persons import Persons
from lightning_gep.strategy.settings import PrivacySettings


@contextmanager
def guarded(
    module: LightningModule,
    trainer: Trainer,
    settings: PrivacySettings,
    *,
    batch_size: int,
    notice: Callable[[str, str], None],
) -> Iterator[None]:
    """Inside, transfer hooks and logs are guarded, and the generators follow no seed; after it all is as it was."""
    reveal = settings.log_nonprivate
    with ExitStack() as guards:
        if settings.private:
            guards.enter_context(random_state_kept())
            renew_random_states()
        guards.callback(TransferGuard(module, trainer, reveal_errors=reveal).remove)
        guards.callback(LogGuard(module, notice, pass_on=reveal, batch_size=batch_size).remove)
        yield


class TransferGuard:
    """Wraps `on_before_batch_transfer` of a module, or of its datamodule, during training.

    Guarantee: the hook gets no empty batch, which no user code expects, and its errors on private records are reported
    without their values.
    """

    def __init__(self, module: LightningModule, trainer: Trainer, *, reveal_errors: bool) -> None:
        self.module, self.trainer, self.reveal_errors = module, trainer, reveal_errors
        vars(module)[TRANSFER_HOOK] = self

    def __call__(self, batch: Any, dataloader_idx: int = 0) -> Any:
        """The batch as the hook returns it; an empty one is taken out of the list that a list of loaders puts it in."""
        if isinstance(batch, EmptyBatch) or (isinstance(batch, list) and any(isinstance(b, EmptyBatch) for b in batch)):
            return EmptyBatch()
        if isinstance(batch, list) and any(isinstance(b, Persons) for b in batch):
            batch = batch[0].each(lambda own: [own])
        if isinstance(batch, Persons):  # which Lightning has not converted, not knowing what it is
            convert = self.trainer.precision_plugin.convert_input
            return batch.each(lambda own: self(convert(own), dataloader_idx))
        return withheld(
            lambda: on_before_batch_transfer(self.module, batch, dataloader_idx),
            "on_before_batch_transfer",
            reveal=self.reveal_errors or not self.trainer.training,
        )

    def __reduce__(self) -> tuple[Any, tuple[Any, str]]:
        return getattr, (self.module, TRANSFER_HOOK)  # saved and copied modules get Lightning's own method back

    def remove(self) -> None:
        """Let Lightning call the hook itself again."""
        vars(self.module).pop(TRANSFER_HOOK, None)
