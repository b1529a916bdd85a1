"""A step of LoRA on a BERT-like model: plain, private, and by Opacus' ghost clipping. Run: python -m benchmarks.lora

The model is all-MiniLM-L6-v2 (22.7 million parameters) with a LoRA of rank 8 on queries and values and a new
classifier: 76,808 trainable parameters. All contenders take the same batch at every step, in processes of their own, in
turn. Seconds are those of the processor, so that other work on the machine counts little; memory is the peak above what
was in use before the first step.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import Precision
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForSequenceClassification

from benchmarks.measure import Clock, Measured, quietly_elsewhere
from lightning_gep.algorithm.gep import gradient_embedding_perturbation
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.noise import make_noise
from lightning_gep.algorithm.spectral import TrackedSpectrum
from lightning_gep.algorithm.subspace import NoSubspace
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.ghost import GhostGradients
from lightning_gep.gradients.memory import keep_freed_memory, largest_chunk
from lightning_gep.privacy.release import make_mechanism
from lightning_gep.strategy.step import StepGradients
from recipes.text.corpora import encoder_folder

RESULTS = Path(__file__).parent / "results" / "lora.json"
BATCHES, LENGTH, WORDS, CLASSES = (32, 64), 32, 30_000, 8
CPU = torch.device("cpu")


class Classifier(LightningModule):
    """As a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        model = AutoModelForSequenceClassification.from_pretrained(encoder_folder(), num_labels=CLASSES)
        adapter = LoraConfig(task_type="SEQ_CLS", r=8, lora_dropout=0.0, target_modules=["query", "value"])
        self.model = get_peft_model(model, adapter)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The loss."""
        words, mask, labels = batch
        return self.model(input_ids=words, attention_mask=mask, labels=labels).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Of what is trained."""
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.01)


def processor_clock() -> Clock:
    """Counts processor seconds, and memory from now on."""
    clock = Clock(now=time.process_time)
    clock.start()
    return clock


def make_batch(size: int, seed: int = 0) -> list[Tensor]:
    """Words at random, texts of half to the whole length."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1000, WORDS, (size, LENGTH), generator=generator)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (size, 1), generator=generator)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    return [words, (torch.arange(LENGTH) < lengths).long(), labels]


def plain(steps: int, size: int) -> Measured:
    """Without privacy."""
    module, batch = Classifier().train(), make_batch(size)
    optimizer, clock = module.configure_optimizers(), processor_clock()
    for _ in range(steps):
        optimizer.zero_grad()
        module.training_step(batch, 0).backward()
        optimizer.step()
        clock.tick()
    return clock.measured


def private(steps: int, size: int, mechanism: str, kind: type[FunctionalGradients]) -> Measured:
    """The steps of GEPStrategy on a batch that is given, without the checks that it makes once an epoch."""
    module, batch = Classifier().train(), make_batch(size)
    optimizer, clock = module.configure_optimizers(), processor_clock()
    keep_freed_memory(CPU)
    groups = ParameterGroups.from_module(module)
    gradients = StepGradients(
        module, Precision(), groups, microbatch=None, expected_records=size, seed=None, rows_needed=False
    )
    gradients.arguments = (0,)
    gradients.backend = backend = kind(module, gradients.loss, groups)
    backend.largest_chunk = largest_chunk(module, gradients.loss, batch, backend.held_per_record)
    subspace: Any = NoSubspace(groups.num_parameters, torch.zeros(0))
    if mechanism == "spectral":
        subspace = TrackedSpectrum(groups.shapes, num_anchors=size, decay=0.95, refresh_every=4)
    public = make_batch(size, seed=1)
    for step in range(steps):
        gradient, _ = gradient_embedding_perturbation(
            lambda: gradients.sweep([public]),
            gradients.of_private(batch),
            subspace=subspace,
            release=make_mechanism(mechanism, clip_norm=1.0).release(1.0, num_parameters=groups.num_parameters),
            noise=make_noise("system"),
            expected_batch_size=size,
            microbatch_size=gradients.microbatch,
            step=step,
            charge=lambda: None,
        )
        gradients.put(gradient)
        optimizer.step()
        clock.tick()
    return clock.measured


def opacus(steps: int, size: int) -> Measured:
    """Opacus' ghost clipping, which runs the backward pass twice."""
    module, batch = Classifier().train(), make_batch(size)
    clock, (words, mask, labels) = processor_clock(), batch
    model, optimizer, loss, _ = PrivacyEngine().make_private(
        module=module.model,
        optimizer=module.configure_optimizers(),
        data_loader=DataLoader(TensorDataset(*batch), batch_size=size),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
        poisson_sampling=False,
    )
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(input_ids=words, attention_mask=mask).logits, labels).backward()
        optimizer.step()
        clock.tick()
    return clock.measured


CONTENDERS: dict[str, Callable[[int, int], Measured]] = {
    "plain": plain,
    "Opacus, ghost": opacus,
    "GP, ghost": lambda steps, size: private(steps, size, "gp", GhostGradients),
    "GP, functional": lambda steps, size: private(steps, size, "gp", FunctionalGradients),
    "spectral, ghost": lambda steps, size: private(steps, size, "spectral", GhostGradients),
}


def _measured(name: str, steps: int, size: int) -> Measured:
    with quietly_elsewhere():
        return CONTENDERS[name](steps, size)


def measure(rounds: int, steps: int, size: int) -> Iterator[dict[str, dict[str, float]]]:
    """Median seconds, multiples of plain and memory of each contender measured so far."""
    found: dict[str, list[Measured]] = {}
    for name in list(CONTENDERS) * rounds:
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            found.setdefault(name, []).append(pool.submit(_measured, name, steps + 1, size).result())
        yield {name: _row(runs, found["plain"]) for name, runs in found.items()}


def _row(runs: list[Measured], plain: list[Measured]) -> dict[str, float]:
    memory = statistics.median(run.peak_mb - run.baseline_mb for run in runs)
    times = _seconds(runs) / _seconds(plain)
    return {"seconds": round(_seconds(runs), 3), "times_plain": round(times, 2), "memory_mb": round(memory)}


def _seconds(runs: list[Measured]) -> float:
    return statistics.median(second for run in runs for second in run.seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"length": LENGTH, **vars(options), "batches": {}}
    for size in BATCHES:
        for rows in measure(options.rounds, options.steps, size):
            found["batches"][size] = rows
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        for name, row in rows.items():
            print(f"| {size} | {name} | {row['seconds']:.2f} | {row['times_plain']:.2f} | {row['memory_mb']:.0f} |")
