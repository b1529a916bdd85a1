"""Throughput and memory of training: means over an epoch and a maximum, never single steps."""

import re
import sys
import time
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

PROCESS = Path("/proc/self")


class PerformanceMonitor(Callback):
    """Logs, once per epoch, how fast training was and how much memory it took.

    `performance/steps_per_second`; `performance/records_per_second`, which is the expected batch size times that;
    `performance/peak_memory_mb`, of the process, or of the device on CUDA, since training started. Time spent on
    validation does not count. Of several processes the first one's figures are logged; the records are those of all.

    How many records a step drew is private, and the time a step takes tells it roughly. So neither batch sizes nor the
    times of single steps are logged, only means over an epoch. Memory is a maximum; records go through in microbatches,
    so it hardly follows the size of a batch. That is a precaution, not a guarantee: ε covers the weights, and neither
    time nor memory.
    """

    def __init__(self) -> None:
        self._steps, self._seconds, self._started = 0, 0.0, 0.0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Here and not at the epoch's start, which a run that is resumed within an epoch does not pass.
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
            values = _throughput(trainer, steps / seconds)
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
    """The most memory used so far, in MB: on a CUDA device what torch had allocated, else the size of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1024**2
    status = PROCESS / "status"
    # Where there is a choice not ru_maxrss, which begins at the size of the process that started this one.
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+)", status.read_text())):
        return int(found[1]) / 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


def forget_peak_memory(device: torch.device) -> None:
    """Begin the measurement anew, where the system can: the jobs of a sweep may share a process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        (PROCESS / "clear_refs").write_text("5")  # man 5 proc: the peak becomes the present size
    except OSError:
        return


def _throughput(trainer: Trainer, steps_per_second: float) -> dict[str, float]:
    account = getattr(trainer.strategy, "privacy", None)
    values = {"steps_per_second": steps_per_second}
    if account is not None:
        values["records_per_second"] = account.plan.expected_batch_size * steps_per_second
    return values
