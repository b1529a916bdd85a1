"""What is checked before every release: code that behaved well at the start may behave differently later."""

import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import take
from lightning_gep.gradients.isolation import NORM_FIX, norms_that_mix
from lightning_gep.gradients.mixing import RECORDS_TRIED, check_transfer
from lightning_gep.gradients.randomness import random_state_kept
from lightning_gep.gradients.snapshot import NOT_FOLLOWED, package
from lightning_gep.strategy.logs import quiet
from lightning_gep.strategy.refusals import check_no_accumulation, check_no_gradient_hooks, check_trainable
from lightning_gep.strategy.step import StepGradients, train_mode

HOOKS = ("on_train_start", "on_train_epoch_start", "on_train_batch_start")


@contextmanager
def as_hooks_may_leave_it(module: LightningModule, trainer: Trainer) -> Iterator[list[str]]:
    """Inside, BatchNorm is in evaluation mode if there is a hook that may put it there when training starts.

    Gives the names of these layers, which must be in that mode before a release.
    """
    callbacks = [callback for callback in trainer.callbacks if package(type(callback)) not in NOT_FOLLOWED]  # type: ignore[attr-defined]
    own = any(is_overridden(hook, module) for hook in HOOKS)
    hooked = own or any(is_overridden(hook, callback, Callback) for callback in callbacks for hook in HOOKS)
    norms = {name: norm for name, norm in norms_that_mix(module).items() if norm.training} if hooked else {}
    for norm in norms.values():
        norm.training = False
    try:
        yield list(norms)
    finally:
        for norm in norms.values():
            norm.training = True


class ReleaseChecks:
    """The checks of one fit.

    Those that run the user's code do so on a few public records, at the first step of every epoch and at one random
    step of it. `frozen_norms` are layers of BatchNorm that a hook has to put into evaluation mode, as they were for the
    checks at the start.
    """

    def __init__(self, gradients: StepGradients, public_batch: Any, frozen_norms: Collection[str] = ()) -> None:
        self._gradients, self._frozen_norms = gradients, frozenset(frozen_norms)
        self._records = take(public_batch, slice(0, RECORDS_TRIED))
        self._released_batch: int | None = None
        self._epoch: int | None = None
        self._also_at = 0

    def before_training(self) -> None:
        """Raises ConfigurationError if what happens to a batch on its way to training_step mixes or keeps records."""
        with train_mode(self._gradients.module):
            check_transfer(self._gradients.module, self._records, self._gradients.transfer)

    def before_a_release(self, trainer: Trainer, optimizer: Optimizer) -> None:
        """Raises ConfigurationError for anything that would make the release more than one subsampled Gaussian."""
        check_no_accumulation(trainer)
        check_no_gradient_hooks(self._gradients.module)  # which callbacks and module may have set at any time
        check_trainable(self._gradients.module, self._gradients.groups.shapes)
        mixing = norms_that_mix(self._gradients.module).keys() & self._frozen_norms
        if mixing:
            raise ConfigurationError(f"BatchNorm mixes records: {', '.join(sorted(mixing))}. {NORM_FIX}")
        if self._epoch != trainer.current_epoch:
            self._epoch = trainer.current_epoch
            self._also_at = secrets.randbelow(int(trainer.num_training_batches))
            self._check_again()
        elif trainer.fit_loop.batch_idx == self._also_at:
            self._check_again()
        batch = trainer.fit_loop.total_batch_idx
        if batch == self._released_batch:
            raise ConfigurationError(
                f"{type(optimizer).__name__}.step evaluates the loss more than once on the same batch (like SAM or "
                "line searches), and every evaluation would be a release of its own. Use SGD or Adam."
            )
        self._released_batch = batch

    def _check_again(self) -> None:
        """Code may begin to mix records after a few epochs, or do so at some steps only."""
        with quiet(), random_state_kept():
            self.before_training()
            self._gradients.check_again(self._records)
