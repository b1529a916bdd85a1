"""Callbacks: the privacy state in logs and progress bar, a clean end at the budget, and throughput and memory."""

import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.rounding import rounded_up, shown_epsilon
from lightning_gep.strategy.strategy import GEPStrategy

PROCESS = Path("/proc/self")


class PrivacyMonitor(Callback):
    """Logs the privacy state to every logger after each step, and ε, if it is finite, to the progress bar.

    Logged are `privacy/epsilon`, `privacy/delta`, `privacy/noise_multiplier`, `privacy/steps`, `privacy/private` (1 or
    0) and, with a target ε, `privacy/remaining_epsilon`. If the strategy has `log_nonprivate=True`, the callback also
    logs statistics of gradients and clipping as `nonprivate/<name>`; they depend on private data and no ε covers them.

    Raises:
        ConfigurationError: At the first step, if the trainer's strategy is not a `GEPStrategy`.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_gep import GEPStrategy, PrivacyMonitor
        >>> trainer = Trainer(strategy=GEPStrategy(epsilon=8.0), callbacks=[PrivacyMonitor()])

    """

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        strategy, account = _private_run(trainer, self)
        spent = account.epsilon()
        if math.isfinite(spent):  # a bar shows infinity as "inf.0"
            # The bar shows three decimals, and a bar of 80 columns has no room for more.
            pl_module.log("ε", float(rounded_up(spent)), prog_bar=True, logger=False, batch_size=1)
        values = {
            "epsilon": spent,
            "delta": account.delta,
            "noise_multiplier": account.noise_multiplier,
            "steps": float(account.steps),
            "private": float(account.report()["private"]),
        }
        if account.remaining_epsilon is not None:
            values["remaining_epsilon"] = account.remaining_epsilon
        pl_module.log_dict({f"privacy/{name}": value for name, value in values.items()}, batch_size=1)
        if strategy.settings.log_nonprivate:
            diagnostics = {f"nonprivate/{name}": value for name, value in strategy.diagnostics().items()}
            pl_module.log_dict({name: v for name, v in diagnostics.items() if math.isfinite(v)}, batch_size=1)


class PrivacyBudget(Callback):
    """Ends training cleanly after the last step that the budget allows.

    Without it, the strategy raises `BudgetExhaustedError` when a step would exceed its target.

    Args:
        epsilon: A budget below the strategy's target, or one for a strategy with a given `noise_multiplier`. Default
            None: the strategy's target.

    Raises:
        ConfigurationError: When training starts, if the trainer's strategy is not a `GEPStrategy`.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_gep import GEPStrategy, PrivacyBudget
        >>> strategy = GEPStrategy(noise_multiplier=1.0, delta=1e-5)
        >>> trainer = Trainer(max_epochs=-1, strategy=strategy, callbacks=[PrivacyBudget(epsilon=3.0)])

    """

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
        _, account = _private_run(trainer, self)
        if not account.allows_another_step(self.epsilon) and not trainer.should_stop:
            trainer.should_stop = True
            if trainer.global_step == account.plan.planned_steps:
                return  # the end of training as planned
            spent = shown_epsilon(account.accounted_epsilon())
            rank_zero_info(f"Privacy budget used up after {account.steps} steps, ε = {spent}: stopping.")


class PerformanceMonitor(Callback):
    """Logs throughput and memory once per epoch; works with any strategy.

    Logged are `performance/steps_per_second`, `performance/records_per_second` (with a `GEPStrategy`: the expected
    batch size times the former) and `performance/peak_memory_mb` (of the process, or on CUDA of the device, since
    training started). Validation time does not count. With several processes, the figures are those of the first; the
    records are those of all.

    How many records a step drew is private, and the duration of a step depends on it. So batch sizes and single steps
    are never logged, only means over an epoch. Memory is a maximum, and hardly depends on the batch size because
    records are processed in microbatches. This is a precaution, not a guarantee: ε covers the weights, not time and
    memory.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_gep import GEPStrategy, PerformanceMonitor
        >>> trainer = Trainer(strategy=GEPStrategy(epsilon=8.0), callbacks=[PerformanceMonitor()])

    """

    def __init__(self) -> None:
        self._steps, self._seconds, self._started = 0, 0.0, 0.0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not at the start of the epoch: a run that is resumed within one does not pass it.
        forget_peak_memory(trainer.strategy.root_device)
        self._begin_epoch(trainer)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seconds += time.perf_counter() - self._started

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.perf_counter()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seconds = self._seconds + time.perf_counter() - self._started
        steps = trainer.global_step - self._steps
        if steps > 0 and seconds > 0:
            values = {"steps_per_second": steps / seconds}
            account = getattr(trainer.strategy, "privacy", None)
            if account is not None:
                values["records_per_second"] = account.plan.expected_batch_size * steps / seconds
            peak = peak_memory(trainer.strategy.root_device)
            if peak is not None:
                values["peak_memory_mb"] = peak
            pl_module.log_dict(
                {f"performance/{name}": value for name, value in values.items()},
                on_step=False,
                on_epoch=True,
                batch_size=1,
                rank_zero_only=True,
            )
        self._begin_epoch(trainer)

    def _begin_epoch(self, trainer: Trainer) -> None:
        self._steps, self._seconds, self._started = trainer.global_step, 0.0, time.perf_counter()


def peak_memory(device: torch.device) -> float | None:
    """The most memory used so far, in MB: allocated by torch on a CUDA device, else the size of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1024**2
    status = PROCESS / "status"
    # Preferred to ru_maxrss, which starts at the size of the parent process.
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+)", status.read_text())):
        return int(found[1]) / 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


def forget_peak_memory(device: torch.device) -> None:
    """Start the measurement again, where the system can: the jobs of a sweep may share a process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        (PROCESS / "clear_refs").write_text("5")  # man 5 proc: the peak becomes the current size
    except OSError:
        return


def _private_run(trainer: Trainer, callback: Callback) -> tuple[GEPStrategy, PrivacyAccount]:
    if not isinstance(trainer.strategy, GEPStrategy):
        raise ConfigurationError(
            f"{type(callback).__name__} needs a private run, but the strategy is {type(trainer.strategy).__name__}. "
            "Use Trainer(strategy=GEPStrategy(...)), or remove the callback."
        )
    assert trainer.strategy.privacy is not None, "training has started, so there is an account"
    return trainer.strategy, trainer.strategy.privacy
