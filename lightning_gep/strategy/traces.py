"""What code that runs on private records leaves behind in the module, the trainer and its callbacks is put back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def no_trace(module: LightningModule) -> Iterator[None]:
    """Whatever is left behind inside, except in parameters and buffers, is gone on leaving."""
    before = snapshot(module)
    try:
        yield
    finally:
        before.put_back()


def traces_of(module: LightningModule, call: Callable[[], object]) -> list[str]:
    """Names of everything that a call writes to, parameters and buffers included; it is put back."""
    with untouched(*_roots(module)) as written:
        call()
    return written


def _roots(module: LightningModule) -> tuple[Any, ...]:
    """Everything a training step can reach that is saved, or that decides something, later."""
    trainer = attached_trainer(module)
    if trainer is None:
        return (module,)
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    callbacks = [callback for callback in trainer.callbacks if package(type(callback)) not in NOT_FOLLOWED]
    return (module, *trainer.optimizers, *schedulers, *callbacks, trainer, logged_results(trainer))
