"""Real fits with canaries: what is audited, and what such a fit releases, step by step."""

import copy
import logging
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.arguments import one_of
from lightning_gep.audit.canaries import Canaries
from lightning_gep.audit.estimators import Progress
from lightning_gep.audit.templates import contributions, coordinates
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.strategy.public_data import find_public_loader
from lightning_gep.strategy.refusals import check_loader
from lightning_gep.strategy.strategy import GEPStrategy


class AuditedStrategy(GEPStrategy):
    """A strategy whose per-sample gradients are formed, to be watched and replaced."""

    _rows_needed = True


@dataclass(frozen=True)
class Subject:
    """What is audited: a module, its training data, and how it is trained privately.

    Args:
        module: Trained in copies only, with slightly changed weights, so that it can be trained afterwards.
        train_loader: The loader of the training records.
        settings: The arguments of GEPStrategy. Public data is found as in training.
        trainer: The arguments of Trainer that decide how long the run is: `max_epochs`, `max_steps`,
            `limit_train_batches`; also `accelerator` and `precision`.
        datamodule: Where the loader comes from, if it has transfer hooks or public data.

    """

    module: LightningModule
    train_loader: DataLoader[Any]
    settings: Mapping[str, Any]
    trainer: Mapping[str, Any] = field(default_factory=dict)
    datamodule: LightningDataModule | None = None

    def __post_init__(self) -> None:
        check_loader(self.train_loader)
        # Ghost clipping never forms the gradients that those of canaries replace.
        one_of("gradients", self.settings.get("gradients", "auto"), ("auto", "functional", "hooks", "loop"))

    def strategy(self, **changed: Any) -> GEPStrategy:
        """The strategy with some arguments changed, and with secret draws, whatever generator the settings have."""
        generator = "secure" if self.settings.get("generator") == "secure" else "system"
        arguments: dict[str, Any] = {**self.settings, "generator": generator, **changed}
        arguments["residual_memory"] = 0.0  # every release is read by itself; a mean of them is post-processing
        used = AuditedStrategy(**arguments)
        if not used.settings.uses_public_data:
            return used
        public = find_public_loader(used.cost.aux_dataloader, self.datamodule, self.module)
        return AuditedStrategy(**{**arguments, "aux_dataloader": public})


@dataclass(frozen=True)
class Seen:
    """What the attacker makes of a step, knowing all other records and which of them were drawn."""

    noisy_sum: Tensor
    """Canaries and noise: the released gradient times the expected batch size, in the coordinates that are clipped and
    perturbed, without what the other records added."""
    basis: Basis
    plan: PrivacyPlan


class Attack(Callback, ABC):
    """Plants canaries and reads every release."""

    def __init__(self, canaries: Canaries, what: str, progress: Progress) -> None:
        self.canaries, self._what, self._progress = canaries, what, progress
        self.draws = 0
        """How often a canary was drawn, included or not."""
        self._fit: Any = None
        self._others: list[Tensor] = []

    def choose_canaries(self, groups: ParameterGroups, plan: PrivacyPlan) -> None:
        """Called before the first step."""

    def before_step(self) -> None:
        """Called before every step."""

    @abstractmethod
    def read(self, seen: Seen) -> None:
        """Called with every release."""

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        strategy: Any = trainer.strategy
        self._fit, gradients = strategy.prepared, strategy.prepared.gradients
        vars(gradients)["of_private"] = partial(self._watch, trainer, gradients.of_private)
        self.choose_canaries(gradients.groups, self._fit.account.plan)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._others = []
        self.before_step()

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        plan, groups, basis = self._fit.account.plan, self._fit.gradients.groups, self._basis
        gradients = {name: p.grad.detach().cpu() for name, p in pl_module.named_parameters() if p.grad is not None}
        noisy_sum = coordinates(groups.flatten(gradients) * plan.expected_batch_size, basis)
        for rows in self._others:
            noisy_sum -= rows
        self.read(Seen(noisy_sum, basis, plan))
        self._progress(self._what, (trainer.global_step + 1) / plan.planned_steps)

    @property
    def _basis(self) -> Basis:
        return self._fit.basis_source.current.to(torch.device("cpu"))

    def _watch(self, trainer: Trainer, of_private: Callable[[Any], Iterator[Tensor]], batch: Any) -> Iterator[Tensor]:
        """The gradients of a batch, with those of canaries; what the other records will add to the sum is noted."""
        sampler, start = self._fit.sampler, 0
        drawn = torch.tensor(sampler.draw(trainer.global_step)) - (sampler.num_records - len(self.canaries))
        for rows in of_private(batch):
            numbers = drawn[start : start + len(rows)]
            start += len(rows)
            self.draws += int((numbers >= 0).sum())
            self.canaries.replace(rows, numbers.to(rows.device))
            others = rows.cpu()[numbers < 0]
            finite = others[others.isfinite().all(1)]
            self._others += [
                part.sum(0) for _, part in contributions(finite, self._basis, self._fit.account.plan.release)
            ]
            yield rows


def fit_with_canaries(
    subject: Subject,
    strategy: GEPStrategy,
    loader: DataLoader[Any],
    attack: Attack,
    *,
    frozen: bool,
    **trainer: Any,
) -> None:
    """Train a copy of the module on a loader with canaries. Nothing remains on disk."""
    module = copy.deepcopy(subject.module)
    with torch.no_grad():
        # Otherwise the audit's weights would be taken for the module's own, and training it would be refused.
        for parameter in module.parameters():
            parameter.add_(1e-4 * torch.randn_like(parameter))
    quiet = {f"enable_{name}": False for name in ("checkpointing", "progress_bar", "model_summary")}
    fixed = {"strategy": strategy, "callbacks": [attack], "logger": False, "limit_val_batches": 0}
    with tempfile.TemporaryDirectory() as directory, _silence():
        used = Trainer(**{**subject.trainer, **quiet, **trainer, **fixed, "default_root_dir": directory})
        if frozen:
            vars(module)["configure_optimizers"] = lambda: torch.optim.SGD(module.parameters(), lr=0.0)
        if subject.datamodule is None:
            used.fit(module, loader)
        else:  # for its transfer hooks
            datamodule = copy.copy(subject.datamodule)
            vars(datamodule)["train_dataloader"] = lambda: loader
            used.fit(module, datamodule=datamodule)


@contextmanager
def _silence() -> Iterator[None]:
    """Lightning's and the strategy's notices are about runs that are kept."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
