"""A step in several processes: seconds and the bytes they exchange, for the same batch over all of them."""

import json
import os
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from benchmarks.contenders import NOISE, Classifier
from benchmarks.measure import memory_mb, reset_peak
from benchmarks.settings import Setting
from lightning_gep import GEPStrategy
from recipes.writing import markdown_table

MECHANISMS: dict[str, dict[str, Any]] = {
    "gp": {"mechanism": "gp"},
    "spectral": {"mechanism": "spectral"},
    "gep": {"clip_embedding": 1.0, "clip_residual": 0.4},
}
STEPS = {"plain": 4, "gp": 4, "spectral": 12, "gep": 4}
"""Of spectral, as many as from one refresh to the next."""


class Meter(Callback):
    """Seconds and bytes of all steps but the first, which fills the basis; written down by each process.

    Each process keeps to one core, so that several do not gain from cores that a single one would have left idle.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.cores = directory, sorted(os.sched_getaffinity(0))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep to one core."""
        keep_to({self.cores[trainer.local_rank % len(self.cores)]})

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Begin after the first step."""
        if trainer.global_step == 1:
            reset_peak()
            self.start, self.cpu_start, self.sent = time.perf_counter(), processor_seconds(), sent(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write down what a step has taken."""
        steps = trainer.global_step - 1
        exchanged = {name: (count - self.sent[name]) / steps for name, count in sent(trainer).items()}
        own, system = ((now - then) / steps for now, then in zip(processor_seconds(), self.cpu_start, strict=True))
        figures = {
            "seconds": (time.perf_counter() - self.start) / steps,
            "own_seconds": own,
            "system_seconds": system,
            "bytes": exchanged,
            "peak_mb": memory_mb("VmHWM"),
        }
        (self.directory / f"{trainer.global_rank}.json").write_text(json.dumps(figures))
        keep_to(set(self.cores))


def processor_seconds() -> tuple[float, float]:
    """Of this process, and of the system on its behalf, which clears the memory that it asks for."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


def keep_to(cores: set[int]) -> None:
    """Let all threads of this process run on these cores only."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def sent(trainer: Trainer) -> Counter[str]:
    """What this process has exchanged. DDP sends 4 bytes for each parameter and step."""
    if isinstance(trainer.strategy, GEPStrategy):
        assert trainer.strategy.prepared is not None
        return Counter(getattr(trainer.strategy.prepared.exchange, "sent", {}))
    parameters = sum(parameter.numel() for parameter in trainer.lightning_module.parameters())
    return Counter(gradient=4 * parameters * trainer.global_step if trainer.world_size > 1 else 0)


def in_processes(contender: str, processes: int, setting: Setting, n: int) -> dict[str, Any]:
    """Figures of a step with n records over all processes: the most seconds and memory of one, and the bytes."""
    if contender == "plain":
        strategy: Any = DDPStrategy(start_method="fork")
    else:
        given = {**({"k": setting.k} if contender == "gep" else {}), **MECHANISMS[contender]}
        public = setting.anchors(setting.microbatch)
        given |= {"aux_dataloader": public} if contender != "gp" else {}
        strategy = GEPStrategy(noise_multiplier=NOISE, delta=1e-5, start_method="fork", **given)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            max_epochs=-1,
            max_steps=STEPS[contender] + 1,
            accelerator="cpu",
            devices=processes,
            strategy=strategy,
            callbacks=[Meter(Path(directory))],
            default_root_dir=directory,
            **quiet,
        )
        # All steps are in one epoch: the checks of an epoch's beginning are not those of a step.
        records = setting.records(n * (STEPS[contender] + 2))
        trainer.fit(Classifier(setting.network()), DataLoader(records, batch_size=n // processes))
        ranks = [json.loads((Path(directory) / f"{rank}.json").read_text()) for rank in range(processes)]
    most = {name: max(rank[name] for rank in ranks) for name in ("seconds", "own_seconds", "system_seconds", "peak_mb")}
    return {**most, "bytes": ranks[0]["bytes"]}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row for every contender and number of processes."""
    exchanged = ("gradient, bytes", "basis, bytes", "of plain DDP")
    head = ("", "processes", "s", "speed-up", "own CPU s", "system's", "MB", *exchanged)
    rows = []
    plain = next((found["bytes"] for found in results["plain"].values() if any(found["bytes"].values())), None)
    for contender, by_processes in results.items():
        for processes, found in by_processes.items():
            gradient, basis = (found["bytes"].get(name, 0.0) for name in ("gradient", "basis"))
            ratio = f"{(gradient + basis) / plain['gradient']:.3f}" if plain and gradient else ""
            speed_up = next(iter(by_processes.values()))["seconds"] / found["seconds"]
            processor = (f"{found[name]:.2f}" for name in ("own_seconds", "system_seconds"))
            times = (f"{found['seconds']:.2f}", f"{speed_up:.2f}", *processor)
            numbers = (f"{found['peak_mb']:.0f}", f"{gradient:_.0f}", f"{basis:_.0f}")
            rows.append([contender, processes, *times, *(number.replace("_", " ") for number in numbers), ratio])
    return "\n".join(markdown_table(head, rows))
