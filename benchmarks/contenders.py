"""Who is compared: each trains `steps` steps at a setting and is timed from step to step."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.measure import Clock, Measured
from benchmarks.paper_reference import PaperStep
from benchmarks.settings import Setting
from lightning_gep import GEPStrategy
from lightning_gep.gradients.choice import choose_backend
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.memory import keep_freed_memory

LEARNING_RATE, NOISE = 0.05, 1.0
PAPERS_GROUPS = "tree"
STEPS_OF_AN_EPOCH = 1000


class Classifier(LightningModule):
    """The network on the mean cross entropy, as a user writes it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss."""
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


class LongEpoch(Dataset[tuple[Tensor, ...]]):
    """The n records of a setting again and again. Of two steps of each epoch checks are part, here hardly ever."""

    def __init__(self, setting: Setting) -> None:
        self.records = setting.records(setting.n)

    def __len__(self) -> int:
        return STEPS_OF_AN_EPOCH * len(self.records)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.records[index % len(self.records)]


class StepClock(Callback):
    """Ticks at the end of every step, so that all that belongs to a step is counted, loading included."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set up; the first step, which also fills the basis, is still warm-up."""
        self.clock.start()

    def on_train_batch_end(self, *_: Any) -> None:
        """A step."""
        self.clock.tick()


def fit(setting: Setting, steps: int, **settings: Any) -> Measured:
    """A fit with Lightning, without privacy unless `settings` of the trainer say otherwise."""
    clock = Clock()
    trainer = Trainer(
        max_steps=steps + 1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[StepClock(clock)],
        **settings,
    )
    trainer.fit(Classifier(setting.network()), DataLoader(LongEpoch(setting), batch_size=setting.n))
    return clock.measured


def ours(setting: Setting, steps: int, *, grouping: str | None = None, **settings: Any) -> Measured:
    """GEPStrategy with its default settings but for those given, without calibration before the first step.

    Its microbatch is that of the others unless something else is given.
    """
    setting = setting if grouping is None else replace(setting, grouping=grouping)
    strategy = GEPStrategy(
        noise_multiplier=NOISE,
        delta=1e-7,
        groups=setting.grouping,
        aux_dataloader=setting.anchors(setting.microbatch),
        **{"microbatch_size": setting.microbatch, **settings},
    )
    return fit(setting, steps, strategy=strategy)


def gep(setting: Setting, steps: int, **settings: Any) -> Measured:
    """GEP, by default with the tracked subspace."""
    return ours(setting, steps, k=setting.k, clip_embedding=1.0, clip_residual=0.4, **settings)


def gep_cold(setting: Setting, steps: int) -> Measured:
    """GEP with the paper's subspace and groups: from a cold start on all anchors at each step, streamed."""
    cold = {"subspace": "power", "refresh_every": 1, "num_anchors": setting.m}
    return gep(setting, steps, grouping=PAPERS_GROUPS, **cold)


def bgep(setting: Setting, steps: int) -> Measured:
    """B-GEP."""
    return ours(setting, steps, mechanism="bgep", k=setting.k, clip_embedding=1.0)


def opacus(setting: Setting, steps: int, mode: str) -> Measured:
    """Opacus' DP-SGD, by hooks or by ghost clipping, which never forms a record's gradient."""
    network = setting.network()
    if ModuleValidator.validate(network, strict=False):
        network = ModuleValidator.fix(network)  # what Opacus tells a user to do: its own attention for torch's
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
    criterion: Any = nn.CrossEntropyLoss()
    extra = {"grad_sample_mode": "ghost", "criterion": criterion} if mode == "ghost" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = PrivacyEngine().make_private(
            module=network,
            optimizer=optimizer,
            data_loader=setting.batch(),
            noise_multiplier=NOISE,
            max_grad_norm=1.0,
            **extra,
        )
    network, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if mode == "ghost" else criterion
    clock = Clock()
    clock.start()
    for _ in range(steps + 1):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=setting.microbatch, optimizer=optimizer
        ) as parts:
            for inputs, labels in parts:
                optimizer.zero_grad()
                criterion(network(inputs), labels).backward()
                optimizer.step()
        clock.tick()
    return clock.measured


def gradients(setting: Setting, steps: int) -> Measured:
    """Forward and backward pass of all n records, and nothing else."""
    network, (inputs, labels) = setting.network(), setting.records(setting.n).tensors

    def step() -> None:
        network.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()

    return _repeated(step, steps)


def gradients_each(setting: Setting, steps: int) -> Measured:
    """Per-sample gradients of n records as the strategy computes them, and nothing else."""
    network, groups, (inputs, labels) = setting.network(), setting.groups(), setting.records(setting.n).tensors
    keep_freed_memory(torch.device("cpu"))
    rows = choose_backend(
        network,
        lambda batch: nn.functional.cross_entropy(network(batch[0]), batch[1]),
        groups,
        setting.records(setting.microbatch).tensors,
    )

    def step() -> None:
        for part in zip(inputs.split(setting.microbatch), labels.split(setting.microbatch), strict=True):
            rows(part)

    return _repeated(step, steps)


def _repeated(step: Callable[[], None], steps: int) -> Measured:
    clock = Clock()
    clock.start()
    for _ in range(steps + 1):
        step()
        clock.tick()
    return clock.measured


def paper(setting: Setting, steps: int) -> Measured:
    """The published algorithm, written plainly."""
    network = setting.network()
    module, groups = Classifier(network), replace(setting, grouping=PAPERS_GROUPS).groups()
    rows = FunctionalGradients(network, lambda batch: nn.functional.cross_entropy(network(batch[0]), batch[1]), groups)
    step = PaperStep(
        lambda x, y: rows((x, y)), groups, setting.k, microbatch=setting.microbatch, clips=(1.0, 0.4), noise=NOISE
    )
    optimizer = module.configure_optimizers()
    batch, anchors = setting.records(setting.n).tensors, setting.records(setting.m).tensors
    clock = Clock(skip=0)
    clock.start()
    for _ in range(steps):
        gradient = step((anchors[0], anchors[1]), (batch[0], batch[1]))
        for name, part in groups.unflatten(gradient).items():
            network.get_parameter(name).grad = part
        optimizer.step()
        clock.tick()
    return clock.measured


CONTENDERS: dict[str, Callable[[Setting, int], Measured]] = {
    "gradients": gradients,
    "gradients_each": gradients_each,
    "plain": fit,
    "opacus_hooks": partial(opacus, mode="hooks"),
    "opacus_ghost": partial(opacus, mode="ghost"),
    "gp": partial(ours, mechanism="gp", clip_norm=1.0),
    "gp_ghost": partial(ours, mechanism="gp", clip_norm=1.0, gradients="ghost"),
    "spectral": partial(ours, mechanism="spectral", clip_norm=1.0),
    "spectral_ghost": partial(ours, mechanism="spectral", clip_norm=1.0, gradients="ghost"),
    "bgep": bgep,
    "gep": gep,
    "gep_auto": partial(gep, microbatch_size="auto"),
    "gep_tree": partial(gep, grouping=PAPERS_GROUPS),
    "gep_cold": gep_cold,
    "paper": paper,
}
