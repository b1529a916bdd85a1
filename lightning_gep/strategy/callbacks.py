"""Callbacks: the privacy state in logs and progress bar, and a clean end at the budget."""

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.strategy.strategy import GEPStrategy


class PrivacyMonitor(Callback):
    """Logs the privacy state to every logger, and ε to the progress bar.

    `privacy/epsilon`, `privacy/delta`, `privacy/noise_multiplier`, `privacy/steps`, and with a target
    `privacy/remaining_epsilon`. With `log_nonprivate=True` on the strategy also what clipping did, as `nonprivate/…`:
    these are functions of private data and not covered by ε.
    """

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        strategy = _gep(trainer, self)
        account = _account(strategy)
        pl_module.log("privacy/epsilon", account.epsilon(), prog_bar=True, batch_size=1)
        values = {
            "delta": account.delta,
            "noise_multiplier": account.noise_multiplier,
            "steps": float(account.steps),
            "private": float(account.report()["private"]),
        }
        if account.remaining_epsilon is not None:
            values["remaining_epsilon"] = account.remaining_epsilon
        pl_module.log_dict({f"privacy/{name}": value for name, value in values.items()}, batch_size=1)
        if strategy.log_nonprivate:
            diagnostics = {f"nonprivate/{name}": value for name, value in strategy.diagnostics().items()}
            pl_module.log_dict({name: v for name, v in diagnostics.items() if math.isfinite(v)}, batch_size=1)


class PrivacyBudget(Callback):
    """Ends the run after the last step that the budget allows: the strategy's target, or a smaller `epsilon`."""

    def __init__(self, epsilon: float | None = None) -> None:
        self.epsilon = epsilon

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_at_the_end(trainer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._stop_at_the_end(trainer)

    def _stop_at_the_end(self, trainer: Trainer) -> None:
        account = _account(_gep(trainer, self))
        if not account.allows_another_step(self.epsilon) and not trainer.should_stop:
            trainer.should_stop = True
            rank_zero_info(
                f"Privacy budget used up after {account.steps} steps, ε = {account.accounted_epsilon():.4g}: stopping."
            )


def _gep(trainer: Trainer, callback: Callback) -> GEPStrategy:
    if not isinstance(trainer.strategy, GEPStrategy):
        raise ConfigurationError(
            f"{type(callback).__name__} needs a private run, but the strategy is {type(trainer.strategy).__name__}. "
            "Use Trainer(strategy=GEPStrategy(...)), or remove the callback."
        )
    return trainer.strategy


def _account(strategy: GEPStrategy) -> PrivacyAccount:
    assert strategy.privacy is not None, "training has started, so there is an account"
    return strategy.privacy
