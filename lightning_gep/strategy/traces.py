"""What code that runs on private records leaves behind in the module, the trainer and its callbacks is put back."""

from contextlib import AbstractContextManager
from typing import Any

from lightning.pytorch import LightningModule

from lightning_gep.gradients.snapshot import NOT_FOLLOWED, Snapshot, package
from lightning_gep.gradients.state import unregistered, untouched
from lightning_gep.strategy.internals import attached_trainer, logged_results


def snapshot(module: LightningModule) -> Snapshot:
    """What training_step, or a hook on a layer, could overwrite, except parameters and buffers.

    Those are compared by `state_unchanged`: there a change is an error.
    """
    return Snapshot(unregistered(*_roots(module)))


def no_trace(module: LightningModule) -> AbstractContextManager[list[str]]:
    """Whatever is left behind inside is gone on leaving; gives the names of all that was written to."""
    return untouched(*_roots(module))


def _roots(module: LightningModule) -> tuple[Any, ...]:
    """Everything a training step can reach that is saved, or that decides something, later."""
    trainer = attached_trainer(module)
    if trainer is None:
        return (module,)
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    callbacks = [callback for callback in trainer.callbacks if package(type(callback)) not in NOT_FOLLOWED]
    return (module, *trainer.optimizers, *schedulers, *callbacks, trainer, logged_results(trainer))
