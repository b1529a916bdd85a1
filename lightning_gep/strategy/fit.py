"""Everything decided before the first step of a fit, as one frozen object."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_gep.algorithm.diagnostics import BatchStatistics, Diagnostics
from lightning_gep.algorithm.exchange import Exchange
from lightning_gep.algorithm.gep import gradient_embedding_perturbation
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.noise import Noise, NoNoise, make_noise
from lightning_gep.algorithm.residual_memory import ResidualMemory
from lightning_gep.algorithm.spectral import TrackedSpectrum
from lightning_gep.algorithm.subspace import Anchors, BasisSource, NoSubspace, PowerSubspace, RandomSubspace, Subspace
from lightning_gep.algorithm.thresholds import Thresholds
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.gradients.memory import check_basis_fits, check_rows_fit, keep_freed_memory
from lightning_gep.gradients.mixing import RECORDS_TRIED, check_collate
from lightning_gep.gradients.withheld import withheld
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.card.content import RunFacts
from lightning_gep.privacy.card.software import software
from lightning_gep.privacy.plan import check_same_plan
from lightning_gep.privacy.release import Release
from lightning_gep.privacy.sampling import PoissonSampler, Secret, seeded_secret
from lightning_gep.strategy.data import common_lengths
from lightning_gep.strategy.exchange import Collectives, SharedBasis
from lightning_gep.strategy.logs import quiet
from lightning_gep.strategy.origins import Origin
from lightning_gep.strategy.public_data import (
    PublicRecords,
    PublicStream,
    check_public_data,
    find_public_loader,
)
from lightning_gep.strategy.public_gradients import FILLING, PublicGradients, warn_of_noise
from lightning_gep.strategy.refusals import check_monitors
from lightning_gep.strategy.release_checks import ReleaseChecks, as_hooks_may_leave_it
from lightning_gep.strategy.run_card import RunCard, card_directory, mechanism_section, public_data_section
from lightning_gep.strategy.settings import CostSettings, PrivacySettings
from lightning_gep.strategy.stand_ins import explained, is_random, stand_in_batch, stand_in_records
from lightning_gep.strategy.step import StepGradients
from lightning_gep.strategy.step_cost import seconds_of_product, slow_parts
from lightning_gep.strategy.task import Task

PUBLIC_RECORDS_CHECKED = 64
ANCHORS_OF_FIRST_SPECTRUM = 500
ANCHORS_AT_ONCE = 50
"""Gradients of anchors that are held for a spectrum, which only adds them up."""


@dataclass(frozen=True)
class Fit:
    """What the steps of a fit use; nothing of it is replaced while they run."""

    account: PrivacyAccount
    cost: CostSettings
    exchange: Exchange
    chosen: Thresholds
    """Basis size and thresholds: given by the user, or chosen on public data."""
    gradients: StepGradients
    anchors: PublicGradients
    checks: ReleaseChecks
    basis_source: BasisSource
    residual_memory: ResidualMemory
    noise: Noise
    sampler: PoissonSampler
    logged: list[str]
    """The names that training_step logs."""
    has_public_data: bool
    lengths: list[Any] | None
    """The lengths of every training record, if the collate function pads."""
    card: RunCard | None
    """Only in the first process."""
    slow_parts: str
    """What takes much longer than the gradients of a step, in words; nothing after a resume."""

    def release(self, batch: Any, step: int, statistics: BatchStatistics | None) -> tuple[Tensor, Diagnostics]:
        """The private gradient of a batch; with `statistics`, they observe the gradients of its records."""
        private, plan = self.gradients.of_private(batch), self.account.plan
        with self.gradients.reproducible(step):
            return gradient_embedding_perturbation(
                self._anchors_at(step),
                private if statistics is None else statistics.watch(private),
                subspace=self.basis_source,
                release=plan.release,
                noise=self.noise,
                expected_batch_size=plan.expected_batch_size,
                microbatch_size=self.gradients.microbatch,
                step=step,
                charge=self.account.charge,
                exchange=self.exchange,
                residual_memory=self.residual_memory,
            )

    def _anchors_at(self, step: int) -> Anchors:
        """The share of a refresh's public records; the first refresh has to fill all directions of a basis."""
        first = ANCHORS_OF_FIRST_SPECTRUM if self.account.plan.release.embedding is None else self.chosen.k
        filling = isinstance(self.basis_source, SharedBasis) and self.basis_source.is_new
        return self.anchors(self.cost.anchors_due(first, filling=filling), step, FILLING if filling else "")

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: plain values and public tensors, no secret."""
        source, ledger = self.basis_source, self.account.ledger_path
        return {
            "account": self.account.state_dict(),
            "subspace": source.state_dict() if isinstance(source, SharedBasis) else None,
            "residual_memory": self.residual_memory.state_dict(),
            "chosen": dict(vars(self.chosen)),
            "ledger": None if ledger is None else str(ledger),
            "left_unprotected": [] if self.card is None else self.card.left,
        }


def prepare_fit(task: Task, continued: Origin | None) -> Fit:
    """Check, choose and calibrate everything that the steps need.

    `continued` is the earlier part of the run, whose account, thresholds and basis are kept. Raises ConfigurationError
    for data, modules and settings that cannot be trained privately.
    """
    task = replace(task, cost=task.cost.over(task.processes.world_size, task.settings.mechanism))
    settings, cost, processes, groups = task.settings, task.cost, task.processes, task.groups
    device, reveal = task.trainer.strategy.root_device, settings.log_nonprivate
    # Without noise first: mistakes should be found before seconds are spent on public data and calibration.
    settings.plan(**task.size, steps=task.steps, noise_multiplier=0.0)
    if settings.epsilon is not None and task.steps is None:
        settings.plan(**task.size, steps=None)
    if settings.uses_basis and settings.k != "auto":
        check_basis_fits(groups.sizes, groups.quotas(settings.k), torch.float32, device)

    keep_freed_memory(device)
    gradients = _gradients(task)
    loader = task.single_records()
    with as_hooks_may_leave_it(task.module, task.trainer) as frozen_norms:
        public, records = _find_public_data(task, loader)
        of_public = records and (records.name, records.records, records.sha256)
        of_cost = {name: value for name, value in vars(cost).items() if name not in ("aux_dataloader", "groups")}
        of_groups = dict(zip(groups.names, groups.sizes, strict=True))
        facts = {**vars(settings), **of_cost, **task.size, "the public data": of_public, "groups": of_groups}
        processes.check_alike(facts)
        tried = stand_in_records(loader) if public is None else public.records(RECORDS_TRIED)
        with quiet():
            pads = check_collate(loader, tried, reveal_errors=reveal or public is not None)
            lengths = common_lengths(loader.dataset) if pads else None
        held = cost.anchors if settings.uses_basis else min(cost.anchors, ANCHORS_AT_ONCE)
        anchors = PublicGradients(gradients, public, num_anchors=held, sweeps=cost.sweeps)
        batch = (
            withheld(lambda: stand_in_batch(loader), "The collate function", reveal=reveal)
            if public is None
            else next(public.batches(PUBLIC_RECORDS_CHECKED))
        )
        checks = ReleaseChecks(gradients, batch, frozen_norms)
        may_be_kept = public is not None or is_random(batch)
        with quiet(), explained(batch, reveal_errors=reveal) if public is None else nullcontext():
            checks.before_training()
            logged = gradients.choose_backend(batch, cost.gradients, may_be_kept=may_be_kept)
        check_monitors(task.trainer, logged)
        if gradients.backend.forms_rows:
            check_rows_fit(gradients.microbatch, groups.num_parameters, device)

        state = {} if continued is None or continued.state is None else continued.state
        slow = ""
        if continued is None:
            chosen = _choose_thresholds(task, anchors)
            account = PrivacyAccount(
                settings.with_choices(**vars(chosen)).plan(**task.size, steps=task.steps), private=settings.private
            )
            if public is not None and processes.is_first:
                slow = _try_a_step(task, gradients, anchors, batch, account.plan.release, chosen.k)
        else:
            assert continued.account is not None
            chosen, account = Thresholds(**state["chosen"]), continued.account
            _check_same_guarantee(settings.with_choices(**vars(chosen)), account, task.size)
            account.private = account.private and settings.private
    processes.check_alike(account.plan.to_state())

    exchange = Collectives(processes, gradients.device) if processes.world_size > 1 else Exchange()
    anchors.divide(exchange)
    run_facts = RunFacts(
        mechanism=mechanism_section(settings, cost, chosen, groups, account.plan),
        generator=settings.generator,
        device=gradients.device.type,
        software=software(),
        public_data=public_data_section(records, uses_public_data=settings.uses_public_data),
        logged=tuple(logged),
        log_nonprivate=settings.log_nonprivate,
        left_before=tuple(state.get("left_unprotected", ())),
        processes=processes.world_size,
    )
    directory = card_directory(task.trainer.checkpoint_callbacks, task.trainer.default_root_dir)
    # A new secret for every fit, even a resumed one: the same in all processes, and never on disk.
    secret = Secret(processes.broadcast(Secret().reveal())) if task.seed is None else seeded_secret(task.seed)
    return Fit(
        account,
        cost,
        exchange,
        chosen,
        gradients,
        anchors,
        checks,
        _basis_source(task, gradients, exchange, chosen.k, state.get("subspace")),
        _residual_memory(task, gradients, state.get("residual_memory")),
        make_noise(settings.generator, settings.seed) if processes.is_first else NoNoise(),
        PoissonSampler(
            account.plan.num_records,
            account.plan.expected_batch_size,
            secret=secret,
            steps_per_epoch=task.steps_per_epoch,
            rank=processes.rank,
            world_size=processes.world_size,
        ),
        logged,
        public is not None,
        lengths,
        RunCard(directory, account, run_facts, rank_zero_warn) if processes.is_first else None,
        slow,
    )


def _gradients(task: Task) -> StepGradients:
    settings, cost = task.settings, task.cost
    return StepGradients(
        task.module,
        task.trainer.precision_plugin,
        task.groups,
        microbatch=None if cost.microbatch_size == "auto" else cost.microbatch_size,
        expected_records=task.loader.batch_size or 1,
        seed=task.seed,
        rows_needed=settings.uses_basis or task.rows_needed,
        turned=settings.uses_public_data and not settings.uses_basis,
        reveal_errors=settings.log_nonprivate,
        per_person=None if task.persons is None else task.persons.records,
        transfer=task.transfer,
    )


def _try_a_step(
    task: Task, gradients: StepGradients, anchors: PublicGradients, batch: Any, release: Release, k: int
) -> str:
    """A warning where noise drowns the gradient, and in words what takes much longer than gradients."""
    signal, per_record = anchors.one_step(batch, max(part.clip for part in release.parts))
    warn_of_noise(signal, release, (k, task.groups.num_parameters), task.size["batch_size"])
    if not task.settings.uses_basis:
        return ""
    blocks = list(zip(task.groups.quotas(k), task.groups.sizes, strict=True))
    like = torch.zeros(0, dtype=gradients.dtype, device=gradients.device)
    product = seconds_of_product(max(blocks)[0], gradients.microbatch, like)
    return slow_parts(task.cost, blocks, records=gradients.expected_records, per_record=per_record, product=product)


def _basis_source(
    task: Task, gradients: StepGradients, exchange: Exchange, k: int, saved: dict[str, Any] | None
) -> BasisSource:
    settings, cost, groups, device = task.settings, task.cost, task.groups, gradients.device
    if not settings.uses_public_data:
        return NoSubspace(groups.num_parameters, torch.zeros(0, dtype=gradients.dtype, device=device))
    by_k = settings.uses_basis
    subspace = make_subspace(cost, groups.sizes, groups.quotas(k)) if by_k else make_spectrum(cost, groups)
    shared = SharedBasis(subspace, task.processes, exchange, device)
    shared.load_state_dict(saved)
    return shared


def _residual_memory(task: Task, gradients: StepGradients, saved: dict[str, Any] | None) -> ResidualMemory:
    # Other mechanisms have no residual beside an embedding.
    memory = task.cost.residual_memory if task.settings.mechanism == "gep" else 0.0
    residuals = ResidualMemory(memory, tuple(task.groups.shapes))
    residuals.load_state_dict(saved, gradients.device)
    return residuals


def make_subspace(cost: CostSettings, sizes: Sequence[int], quotas: Sequence[int]) -> Subspace:
    """The source of the basis; raises ConfigurationError for settings it cannot work with."""
    if cost.subspace == "tracked":
        return TrackedSubspace(sizes, quotas, num_anchors=cost.anchors, decay=cost.decay, refresh_every=cost.interval)
    if cost.subspace == "power":
        return PowerSubspace(sizes, quotas, iterations=cost.power_iterations, refresh_every=cost.interval)
    return RandomSubspace(sizes, quotas, refresh_every=cost.interval)


def make_spectrum(cost: CostSettings, groups: ParameterGroups) -> TrackedSpectrum:
    """The source of the coordinates of mechanism="spectral"."""
    return TrackedSpectrum(
        groups.shapes,
        num_anchors=cost.anchors,
        decay=cost.decay,
        refresh_every=cost.interval,
        precondition=cost.precondition,
    )


def _find_public_data(task: Task, loader: DataLoader[Any]) -> tuple[PublicStream | None, PublicRecords | None]:
    settings, given = task.settings, task.cost.aux_dataloader
    if not settings.uses_public_data and given is None:
        return None, None
    public = find_public_loader(given, getattr(task.trainer, "datamodule", None), task.module)
    trusted = settings.public_data_is_disjoint
    return PublicStream(public), check_public_data(
        public, loader, trusted=trusted, reveal_errors=settings.log_nonprivate
    )


def _choose_thresholds(task: Task, anchors: PublicGradients) -> Thresholds:
    """What the user left to "auto", chosen on public records by the first process."""
    settings = task.settings

    def choose() -> dict[str, Any]:
        if settings.uses_basis:
            return vars(anchors.thresholds(None if settings.k == "auto" else settings.k))
        spectrum = make_spectrum(task.cost, task.groups) if settings.uses_public_data else None
        return {"clip_norm": anchors.clip_norm(spectrum)}

    choices = {}
    if settings.chosen_on_public_data:
        choices = task.processes.broadcast(choose() if task.processes.is_first else None)
    filled: Any = settings.with_choices(**choices)
    return Thresholds(filled.k, filled.clip_embedding, filled.clip_residual, filled.clip_norm)


def _check_same_guarantee(settings: PrivacySettings, account: PrivacyAccount, size: dict[str, Any]) -> None:
    """Raises ConfigurationError if the settings differ from the plan of an earlier fit in more than its length.

    The noise stays as it was, so a longer training ends at the budget and a shorter one below it. A target may be
    raised.
    """
    saved, noise = account.plan, settings.noise_multiplier
    noise = saved.event.noise_multiplier if noise is None else noise
    asked = settings.plan(**size, steps=saved.planned_steps, noise_multiplier=noise)
    raised = settings.epsilon is not None and settings.epsilon > (saved.target_epsilon or math.inf)
    target = saved.target_epsilon if raised else settings.epsilon
    check_same_plan(saved, replace(asked, planned_steps=saved.planned_steps, target_epsilon=target))
    if raised:
        account.plan = replace(saved, target_epsilon=settings.epsilon)
