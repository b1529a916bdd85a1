"""Everything decided before the first step of a fit, as one frozen object."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import Precision
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader

from lightning_gep.algorithm.exchange import Exchange
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
from lightning_gep.privacy.run_size import limited, total_steps
from lightning_gep.privacy.sampling import PoissonSampler, Secret, seeded_secret
from lightning_gep.strategy.data import WithheldReads, common_lengths, loader_options
from lightning_gep.strategy.exchange import Collectives, SharedBasis
from lightning_gep.strategy.logs import quiet
from lightning_gep.strategy.origins import Origin
from lightning_gep.strategy.persons import PerPerson, single_records
from lightning_gep.strategy.processes import Processes
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
from lightning_gep.strategy.step_cost import StepCost, seconds_of_product

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
    step_cost: StepCost | None
    """An estimate for mechanisms with a basis; None after a resume, and in other processes than the first."""

    def anchors_at(self, step: int) -> Anchors:
        """The share of a refresh's public records; the first refresh has to fill all directions of a basis."""
        first = ANCHORS_OF_FIRST_SPECTRUM if self.account.plan.release.embedding is None else self.chosen.k
        filling = isinstance(self.basis_source, SharedBasis) and self.basis_source.is_new
        count = self.cost.anchors_due(first, filling=filling)
        return self.anchors.announced(count, step, FILLING) if filling else self.anchors(count, step)

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


def prepare_fit(
    settings: PrivacySettings,
    cost: CostSettings,
    *,
    trainer: Trainer,
    module: LightningModule,
    loader: DataLoader[Any],
    precision: Precision,
    device: torch.device,
    processes: Processes,
    like_a_training_batch: Callable[[Any], Any],
    continued: Origin | None,
    rows_needed: bool = False,
) -> Fit:
    """Check, choose and calibrate everything that the steps need.

    `continued` is the earlier part of the run, whose account, thresholds and basis are kept. `like_a_training_batch`
    does to a public batch what Lightning does to a training batch. `rows_needed` says that someone looks at the
    gradients of single records, whatever the mechanism needs. Raises ConfigurationError for data, modules and settings
    that cannot be trained privately.
    """
    cost = cost.over(processes.world_size, settings.mechanism)
    persons = loader.dataset if isinstance(loader.dataset, PerPerson) else None
    records, batch_size = len(loader.dataset), (loader.batch_size or 1) * processes.world_size  # type: ignore[arg-type]
    steps_per_epoch = -(-len(loader) // processes.world_size)
    groups = ParameterGroups.from_module(module, cost.groups)
    steps = planned_steps(trainer, steps_per_epoch)
    size: dict[str, Any] = {
        "num_records": records,
        "batch_size": batch_size,
        "num_parameters": groups.num_parameters,
        "unit": "record" if persons is None else f"person ({persons.unit})",
    }
    reveal = settings.log_nonprivate
    # What follows looks at single records, and reads them through this.
    own: dict[str, Any] = {"batch_size": loader.batch_size, **loader_options(loader)}
    loader = DataLoader(WithheldReads(single_records(loader), reveal_errors=reveal), shuffle=True, **own)
    # Without noise first: mistakes should be found before seconds are spent on public data and calibration.
    settings.plan(**size, steps=steps, noise_multiplier=0.0)
    if settings.epsilon is not None and steps is None:
        settings.plan(**size, steps=None)

    if settings.uses_basis and settings.k != "auto":
        check_basis_fits(groups.sizes, groups.quotas(settings.k), torch.float32, device)

    keep_freed_memory(device)
    seed = settings.seed if settings.generator == "seeded" else None
    gradients = StepGradients(
        module,
        precision,
        groups,
        microbatch=None if cost.microbatch_size == "auto" else cost.microbatch_size,
        expected_records=loader.batch_size or 1,
        seed=seed,
        rows_needed=settings.uses_basis or rows_needed,
        turned=settings.uses_public_data and not settings.uses_basis,
        reveal_errors=reveal,
        per_person=None if persons is None else persons.records,
    )
    with as_hooks_may_leave_it(module, trainer) as frozen_norms:
        public, public_records = _find_public_data(settings, cost, trainer, module, loader)
        of_cost = {name: value for name, value in vars(cost).items() if name not in ("aux_dataloader", "groups")}
        of_public = public_records and (public_records.name, public_records.records, public_records.sha256)
        of_groups = dict(zip(groups.names, groups.sizes, strict=True))
        processes.check_alike({**vars(settings), **of_cost, **size, "the public data": of_public, "groups": of_groups})
        tried = stand_in_records(loader) if public is None else public.records(RECORDS_TRIED)
        with quiet():
            pads = check_collate(loader, tried, reveal_errors=reveal or public is not None)
            lengths = common_lengths(loader.dataset) if pads else None
        held = cost.anchors if settings.uses_basis else min(cost.anchors, ANCHORS_AT_ONCE)
        anchors = PublicGradients(gradients, public, like_a_training_batch, num_anchors=held, sweeps=cost.sweeps)
        batch = (
            withheld(lambda: stand_in_batch(loader), "The collate function", reveal=reveal)
            if public is None
            else next(public.batches(PUBLIC_RECORDS_CHECKED))
        )
        checks = ReleaseChecks(gradients, batch, like_a_training_batch, frozen_norms)
        may_be_kept = public is not None or is_random(batch)
        with quiet(), explained(batch, reveal_errors=reveal) if public is None else nullcontext():
            checks.before_training()
            logged = gradients.choose_backend(like_a_training_batch(batch), cost.gradients, may_be_kept=may_be_kept)
        check_monitors(trainer, logged)
        if gradients.backend.forms_rows:
            check_rows_fit(gradients.microbatch, groups.num_parameters, device)

        state = {} if continued is None or continued.state is None else continued.state
        step_cost: StepCost | None = None
        if continued is None:
            chosen = _choose_thresholds(settings, anchors, processes, groups, cost)
            plan = settings.with_choices(**vars(chosen)).plan(**size, steps=steps)
            if public is not None and processes.is_first:
                signal, per_record = anchors.one_step(batch, max(part.clip for part in plan.release.parts))
                warn_of_noise(signal, plan.release, (chosen.k, groups.num_parameters), batch_size)
                step_cost = _step_cost(settings, cost, gradients, chosen.k, per_record)
            account = PrivacyAccount(plan, private=settings.private)
        else:
            assert continued.account is not None
            chosen, account = Thresholds(**state["chosen"]), continued.account
            _check_same_guarantee(settings.with_choices(**vars(chosen)), account, size)
            account.private = account.private and settings.private
    processes.check_alike(account.plan.to_state())

    exchange = Collectives(processes, gradients.device) if processes.world_size > 1 else Exchange()
    anchors.divide(exchange)

    facts = RunFacts(
        mechanism=mechanism_section(settings, cost, chosen, groups, account.plan),
        generator=settings.generator,
        device=gradients.device.type,
        software=software(),
        public_data=public_data_section(public_records, uses_public_data=settings.uses_public_data),
        logged=tuple(logged),
        log_nonprivate=settings.log_nonprivate,
        left_before=tuple(state.get("left_unprotected", ())),
        processes=processes.world_size,
    )
    # A new secret for every fit, even a resumed one: the same in all processes, and never on disk.
    secret = Secret(processes.broadcast(Secret().reveal())) if seed is None else seeded_secret(seed)
    return Fit(
        account,
        cost,
        exchange,
        chosen,
        gradients,
        anchors,
        checks,
        _basis_source(settings, cost, gradients, processes, exchange, chosen.k, state.get("subspace")),
        _residual_memory(settings, cost, gradients, state.get("residual_memory")),
        make_noise(settings.generator, settings.seed) if processes.is_first else NoNoise(),
        PoissonSampler(
            records,
            batch_size,
            secret=secret,
            steps_per_epoch=steps_per_epoch,
            rank=processes.rank,
            world_size=processes.world_size,
        ),
        logged,
        public is not None,
        lengths,
        RunCard(card_directory(trainer.checkpoint_callbacks, trainer.default_root_dir), account, facts, rank_zero_warn)
        if processes.is_first
        else None,
        step_cost,
    )


def _step_cost(
    settings: PrivacySettings, cost: CostSettings, gradients: StepGradients, k: int, per_record: float
) -> StepCost | None:
    if not settings.uses_basis:
        return None
    blocks = list(zip(gradients.groups.quotas(k), gradients.groups.sizes, strict=True))
    like = torch.zeros(0, dtype=gradients.dtype, device=gradients.device)
    product = seconds_of_product(max(blocks)[0], gradients.microbatch, like)
    return StepCost.estimated(cost, blocks, records=gradients.expected_records, per_record=per_record, product=product)


def _basis_source(
    settings: PrivacySettings,
    cost: CostSettings,
    gradients: StepGradients,
    processes: Processes,
    exchange: Exchange,
    k: int,
    saved: dict[str, Any] | None,
) -> BasisSource:
    groups, device = gradients.groups, gradients.device
    if not settings.uses_public_data:
        return NoSubspace(groups.num_parameters, torch.zeros(0, dtype=gradients.dtype, device=device))
    by_k = settings.uses_basis
    subspace = make_subspace(cost, groups.sizes, groups.quotas(k)) if by_k else make_spectrum(cost, groups)
    shared = SharedBasis(subspace, processes, exchange, device)
    shared.load_state_dict(saved)
    return shared


def _residual_memory(
    settings: PrivacySettings, cost: CostSettings, gradients: StepGradients, saved: dict[str, Any] | None
) -> ResidualMemory:
    memory = cost.residual_memory if settings.mechanism == "gep" else 0.0  # others have no residual beside an embedding
    residuals = ResidualMemory(memory, tuple(gradients.groups.shapes))
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


def planned_steps(trainer: Trainer, steps_per_epoch: int) -> int | None:
    """The total number of steps of a run, or None if it has no end."""
    return total_steps(limited(steps_per_epoch, trainer.limit_train_batches), trainer.max_epochs, trainer.max_steps)


def _find_public_data(
    settings: PrivacySettings, cost: CostSettings, trainer: Trainer, module: LightningModule, loader: DataLoader[Any]
) -> tuple[PublicStream | None, PublicRecords | None]:
    if not settings.uses_public_data and cost.aux_dataloader is None:
        return None, None
    public = find_public_loader(cost.aux_dataloader, getattr(trainer, "datamodule", None), module)
    trusted, reveal = settings.public_data_is_disjoint, settings.log_nonprivate
    records = check_public_data(public, loader, trusted=trusted, reveal_errors=reveal)
    return PublicStream(public), records


def _choose_thresholds(
    settings: PrivacySettings,
    anchors: PublicGradients,
    processes: Processes,
    groups: ParameterGroups,
    cost: CostSettings,
) -> Thresholds:
    """What the user left to "auto", chosen on public records by the first process."""

    def choose() -> dict[str, Any]:
        if settings.uses_basis:
            return vars(anchors.thresholds(None if settings.k == "auto" else settings.k))
        return {"clip_norm": anchors.clip_norm(make_spectrum(cost, groups) if settings.uses_public_data else None)}

    choices = {}
    if settings.chosen_on_public_data:
        choices = processes.broadcast(choose() if processes.is_first else None)
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
