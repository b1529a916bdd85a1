"""GEPStrategy: the glue between Lightning's hooks and the private core."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from lightning_gep.algorithm.diagnostics import BatchStatistics, Diagnostics
from lightning_gep.algorithm.gep import gradient_embedding_perturbation
from lightning_gep.algorithm.groups import Grouping, ParameterGroups
from lightning_gep.algorithm.noise import NoNoise, make_noise
from lightning_gep.algorithm.subspace import BasisSource, NoSubspace, PowerSubspace, RandomSubspace, Subspace
from lightning_gep.algorithm.thresholds import Thresholds
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.fresh_randomness import renew_random_states
from lightning_gep.gradients.heap import keep_freed_memory
from lightning_gep.gradients.memory import microbatch_for
from lightning_gep.gradients.mixing import check_collate
from lightning_gep.gradients.randomness import random_state_kept
from lightning_gep.gradients.withheld import withheld
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.card.content import RunFacts
from lightning_gep.privacy.card.software import software
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import Clipping, Split
from lightning_gep.privacy.run_size import limited, total_steps
from lightning_gep.privacy.sampling import PoissonSampler, Secret, seeded_secret
from lightning_gep.strategy.accounted_strategy import AccountedStrategy
from lightning_gep.strategy.announcements import announce, announce_kept, announce_later_log, announce_logs
from lightning_gep.strategy.checkpoints import check_same_guarantee, open_ledger
from lightning_gep.strategy.logs import LogGuard
from lightning_gep.strategy.poisson_loader import EmptyBatch, PoissonLoader
from lightning_gep.strategy.private_batch import PrivateBatch
from lightning_gep.strategy.processes import SharedBasis
from lightning_gep.strategy.public_data import (
    PublicRecords,
    PublicStream,
    check_public_data,
    find_public_loader,
    is_made_up,
    stand_in_batch,
    stand_in_records,
)
from lightning_gep.strategy.public_gradients import PublicGradients
from lightning_gep.strategy.refusals import (
    SEVERAL_LOADERS,
    SEVERAL_OPTIMIZERS,
    check_held_out,
    check_loader,
    check_module,
    check_monitors,
    check_trainer,
    request_validation_loaders,
)
from lightning_gep.strategy.release_checks import ReleaseChecks
from lightning_gep.strategy.run_card import RunCard, card_directory, mechanism_section, public_data_section
from lightning_gep.strategy.settings import Auto, CostSettings, PrivacySettings
from lightning_gep.strategy.step import StepGradients
from lightning_gep.strategy.transfer import TransferGuard, in_a_list

PUBLIC_RECORDS_CHECKED = 64


class GEPStrategy(AccountedStrategy):
    """Makes a Lightning run differentially private, on one device or several.

    The (ε, δ) guarantee is for adding or removing one training record, and covers the weights and everything computed
    from them. The user's module, loaders and optimizer stay as they are: the train loader is sampled by Poisson, the
    loss of `training_step` is differentiated record by record, and `p.grad` holds the noisy mean.

    Privacy: `epsilon` (the noise is calibrated) or `noise_multiplier` (the step's σ; 0 and infinite thresholds are
    allowed and reported as ε = ∞), `delta` (None: the largest power of ten below 1/N), `accountant`, `generator`
    ("system", "secure", or "seeded" with `seed` for tests, which is not private). Mechanism: `mechanism`, `k`,
    `clip_embedding`, `clip_residual`, `clip_norm` (GP), `clipping`, `split`, `groups`; "auto" chooses on public data.
    Basis: `subspace`, `num_anchors`, `refresh_every`, `decay` (tracked), `power_iterations` (power). Cost only:
    `microbatch_size`, `gradients`. `trust_checkpoint` resumes although the ledger of the run is lost, or begins with
    weights of another private run, which must have no training record in common with this one.
    """

    def __init__(
        self,
        epsilon: float | None = PrivacySettings.epsilon,
        delta: float | None = PrivacySettings.delta,
        k: int | Auto = PrivacySettings.k,
        *,
        noise_multiplier: float | None = PrivacySettings.noise_multiplier,
        accountant: str = PrivacySettings.accountant,
        generator: str = PrivacySettings.generator,
        seed: int = PrivacySettings.seed,
        mechanism: str = PrivacySettings.mechanism,
        clip_embedding: float | Auto = PrivacySettings.clip_embedding,
        clip_residual: float | Auto = PrivacySettings.clip_residual,
        clip_norm: float = PrivacySettings.clip_norm,
        clipping: Clipping = PrivacySettings.clipping,
        split: Split = PrivacySettings.split,
        groups: Grouping = CostSettings.groups,
        subspace: str = CostSettings.subspace,
        num_anchors: int | None = CostSettings.num_anchors,
        refresh_every: int = CostSettings.refresh_every,
        decay: float = CostSettings.decay,
        power_iterations: int = CostSettings.power_iterations,
        microbatch_size: int | Auto = CostSettings.microbatch_size,
        gradients: str = CostSettings.gradients,
        aux_dataloader: DataLoader[Any] | Callable[[], DataLoader[Any]] | None = CostSettings.aux_dataloader,
        log_nonprivate: bool = PrivacySettings.log_nonprivate,
        trust_checkpoint: bool = PrivacySettings.trust_checkpoint,
        start_method: str = CostSettings.start_method,
    ) -> None:
        super().__init__(start_method=start_method)
        self.settings = PrivacySettings(
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            delta=delta,
            accountant=accountant,
            generator=generator,
            seed=seed,
            mechanism=mechanism,
            k=k,
            clip_embedding=clip_embedding,
            clip_residual=clip_residual,
            clip_norm=clip_norm,
            clipping=clipping,
            split=split,
            log_nonprivate=log_nonprivate,
            trust_checkpoint=trust_checkpoint,
        )
        self.cost = CostSettings(
            groups=groups,
            subspace=subspace,
            num_anchors=num_anchors,
            refresh_every=refresh_every,
            decay=decay,
            power_iterations=power_iterations,
            microbatch_size=microbatch_size,
            gradients=gradients,
            aux_dataloader=aux_dataloader,
            start_method=start_method,
        )
        make_subspace(self.cost, (1,), (1,))
        self.log_nonprivate, self.trust_checkpoint = log_nonprivate, trust_checkpoint
        self._training_data: Dataset[Any] | None = None
        self._validated_before: list[object] = []
        self._public_records: PublicRecords | None = None
        self._card: RunCard | None = None
        self._batch: Any = None
        self._log_guard: LogGuard | None = None
        self._transfer_guard: TransferGuard | None = None
        self._own_randomness = ExitStack()
        self._diagnostics: Diagnostics | None = None

    def __repr__(self) -> str:
        return f"GEPStrategy(for lightning.pytorch.Trainer, not for pytorch_lightning.Trainer; {self.settings})"

    # Before the first step: everything is checked and calibrated when the trainer hands over the train loader.

    @override
    def setup(self, trainer: Trainer) -> None:
        # Before the optimizers: configure_optimizers may ask for the number of steps, and so for the train loader.
        self._training_data, self._validated_before = None, []
        if self._fits:
            check_trainer(trainer)  # before callbacks that try out steps
        super().setup(trainer)
        if self._fits:
            check_module(self._module, self.optimizers)

    @override
    def setup_optimizers(self, trainer: Trainer) -> None:
        try:
            super().setup_optimizers(trainer)
        except RuntimeError as error:
            if "multiple optimizers" not in str(error):
                raise
            # Lightning would recommend manual optimisation, in which gradients reach the weights without noise.
            raise ConfigurationError(SEVERAL_OPTIMIZERS) from error

    @override
    def process_dataloader(self, dataloader: object) -> object:
        trainer = self._trainer
        if not self._fits:
            return dataloader
        if not trainer.training:
            self._hold_out(dataloader)
            return dataloader
        if self._training_data is not None:
            raise ConfigurationError(SEVERAL_LOADERS)
        loader = check_loader(dataloader)
        self._training_data = loader.dataset
        request_validation_loaders(trainer)
        for seen in self._validated_before:
            check_held_out(seen, loader.dataset)
        sampler = self._prepare(trainer, loader)
        repeatable = self.settings.generator == "seeded"
        if not repeatable:
            self._own_randomness.enter_context(random_state_kept())
            renew_random_states()
        self._transfer_guard = TransferGuard(self._module, trainer, reveal_errors=self.log_nonprivate)
        self._log_guard = LogGuard(
            self._module, self._notice_of_a_log, pass_on=self.log_nonprivate, batch_size=sampler.expected_batch_size
        )
        return PoissonLoader(
            loader,
            sampler,
            lambda: trainer.global_step,
            repeatable=repeatable,
            reveal_errors=self.log_nonprivate,
        )

    def _hold_out(self, validation_loader: object) -> None:
        if self._training_data is None:  # in a sanity check, which comes before the train loader
            self._validated_before.append(validation_loader)
        else:
            check_held_out(validation_loader, self._training_data)

    @override
    def on_train_start(self) -> None:
        loader: Any = self._trainer.train_dataloader
        if not isinstance(loader[0] if in_a_list(self._trainer) else loader, PoissonLoader):
            raise ConfigurationError(SEVERAL_LOADERS)
        self._check_weights(trust=self.trust_checkpoint)  # those of the first step: hooks may have loaded some
        if self._card is not None:
            self._card.start()

    def _prepare(self, trainer: Trainer, loader: DataLoader[Any]) -> PoissonSampler:
        """Calibrate, choose and open what the steps need; the sampler that takes the place of the loader's own."""
        records, batch_size = len(loader.dataset), (loader.batch_size or 1) * self.world_size  # type: ignore[arg-type]
        groups = ParameterGroups.from_module(self._module, self.cost.groups)
        size = {"num_records": records, "batch_size": batch_size, "num_parameters": groups.num_parameters}
        an_epoch = -(-len(loader) // self.world_size)
        steps = planned_steps(trainer, an_epoch)
        # With no noise at first: mistakes should be found before seconds are spent on public data and calibration.
        self.settings.plan(**size, steps=steps, noise_multiplier=0.0)
        if self.settings.epsilon is not None and steps is None:
            self.settings.plan(**size, steps=None)
        logged = self._prepare_gradients(trainer, loader, groups)
        saved = self._state_to_continue()
        self.privacy = self._new_account(steps, **size) if saved is None else self._continued_account(saved, **size)
        self._check_ranks_agree(self.privacy.plan)
        if saved is None:
            self._check_weights(trust=self.trust_checkpoint)
        self._open_ledger(self.privacy, saved)
        self._basis_source = self._make_basis_source(groups, saved)
        self._noise = make_noise(self.settings.generator, self.settings.seed) if self.is_global_zero else NoNoise()
        announce(self.settings, self._chosen, self.privacy.plan, self._gradients.backend.reason)
        if logged:
            announce_logs(logged, passed_on=self.log_nonprivate)
        if self._gradients.kept:
            announce_kept(self._gradients.kept, made_up=self._public_records is None)
        self._card = self._make_card(trainer, groups, logged, saved) if self.is_global_zero else None
        # Not before: Lightning has put the weights of a checkpoint into the module, and if it is refused they stay.
        self._count_on_own_account()
        # A new secret for every fit, also after a resume: the same on all ranks, and on no disk.
        seed = self._gradients.seed
        secret = Secret(self.broadcast(Secret().reveal())) if seed is None else seeded_secret(seed)
        return PoissonSampler(
            records,
            batch_size,
            secret=secret,
            steps_per_epoch=an_epoch,
            rank=self.global_rank,
            world_size=self.world_size,
        )

    def _prepare_gradients(self, trainer: Trainer, loader: DataLoader[Any], groups: ParameterGroups) -> list[str]:
        """Find the public data and the way to compute gradients; gives the names that training_step logs."""
        seed = self.settings.seed if self.settings.generator == "seeded" else None
        keep_freed_memory(self.root_device)
        microbatch = self.cost.microbatch_size
        if microbatch == "auto":
            microbatch = microbatch_for(groups.num_parameters, self.root_device)
        self._gradients = StepGradients(
            self._module,
            self.precision_plugin,
            groups,
            microbatch=microbatch,
            expected_records=loader.batch_size or 1,
            seed=seed,
            reveal_errors=self.log_nonprivate,
        )
        public = self._find_public_data(trainer, loader)
        self._anchors = PublicGradients(
            self._gradients,
            public,
            self._like_a_training_batch,
            num_anchors=self.cost.anchors,
            sweeps=self.cost.sweeps,
        )
        batch = stand_in_batch(loader) if public is None else next(public.batches(PUBLIC_RECORDS_CHECKED))
        self._checks = ReleaseChecks(self._gradients, batch, self._like_a_training_batch)
        self._checks.before_training()
        logged = self._gradients.choose_backend(
            self._like_a_training_batch(batch),
            self.cost.gradients,
            may_be_kept=public is not None or is_made_up(batch),
        )
        check_monitors(trainer, logged)
        return logged

    def _find_public_data(self, trainer: Trainer, loader: DataLoader[Any]) -> PublicStream | None:
        self._public_records = None
        if not self.settings.uses_basis and self.cost.aux_dataloader is None:
            check_collate(loader, stand_in_records(loader))
            return None
        datamodule = getattr(trainer, "datamodule", None)
        public = find_public_loader(self.cost.aux_dataloader, datamodule, self._module)
        self._public_records = check_public_data(public, loader)
        return PublicStream(public)

    def _new_account(self, steps: int | None, **size: int) -> PrivacyAccount:
        self._chosen = self._choose_thresholds()
        return PrivacyAccount(self._settled.plan(**size, steps=steps), private=self.settings.private)

    def _continued_account(self, saved: dict[str, Any], **size: int) -> PrivacyAccount:
        """The account of the run before. Raises ConfigurationError unless the same guarantee is asked for again."""
        account = self.privacy
        assert account is not None, "it comes with the state"
        self._chosen = Thresholds(**saved["chosen"])
        before, noise = account.plan, self.settings.noise_multiplier
        noise = before.event.noise_multiplier if noise is None else noise
        asked = self._settled.plan(**size, steps=before.planned_steps, noise_multiplier=noise)
        check_same_guarantee(before, asked, self.settings.epsilon)
        account.private = account.private and self.settings.private
        return account

    def _choose_thresholds(self) -> Thresholds:
        """What the user left to "auto", chosen on public records by the first process."""
        if not self.settings.chosen_on_public_data:
            return settled(self.settings.with_choices())
        k = None if self.settings.k == "auto" else self.settings.k
        chosen = self.broadcast(self._anchors.thresholds(k) if self.is_global_zero else None)
        assert chosen is not None
        return settled(self.settings.with_choices(**vars(chosen)))

    def _make_basis_source(self, groups: ParameterGroups, saved: dict[str, Any] | None) -> BasisSource:
        like = torch.zeros(0, dtype=self._gradients.dtype, device=self._gradients.device)
        if not self.settings.uses_basis:
            return NoSubspace(groups.num_parameters, like)
        source = SharedBasis(
            make_subspace(self.cost, groups.sizes, groups.quotas(self._chosen.k)), self.processes, like.device
        )
        source.load_state_dict(saved["subspace"] if saved is not None else None)
        return source

    @property
    def _settled(self) -> PrivacySettings:
        return self.settings.with_choices(**vars(self._chosen))

    # A step.

    @override
    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        move = partial(super().batch_to_device, batch, device, dataloader_idx)
        if not (self._fits and self._trainer.training):
            return move()
        # Hooks get it before training_step does, and could change or keep what is in it.
        if isinstance(batch, EmptyBatch):
            return PrivateBatch(batch)
        return PrivateBatch(withheld(move, "on_after_batch_transfer", reveal=self.log_nonprivate))

    @override
    def training_step(self, batch: PrivateBatch, *arguments: Any, **_: Any) -> Tensor:
        """Keeps the batch for `backward`; the loss is private and does not leave the strategy."""
        self._batch, self._gradients.arguments = batch.open(), arguments
        return torch.zeros((), device=self.root_device, requires_grad=True)

    @override
    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Puts the private gradient into p.grad, then lets Lightning fire its hooks on a loss of nothing."""
        assert self.privacy is not None
        step, plan = self._trainer.global_step, self.privacy.plan
        self._checks.before_a_release(self._trainer, self.optimizers[0])
        private = self._gradients.of_private(self._batch)
        self._statistics = BatchStatistics()
        filling = isinstance(self._basis_source, SharedBasis) and self._basis_source.is_new
        with self._gradients.reproducible(step):
            gradient, self._diagnostics = gradient_embedding_perturbation(
                self._anchors(self.cost.anchors_due(self._chosen.k, filling=filling), step),
                self._statistics.watch(private) if self.log_nonprivate else private,
                subspace=self._basis_source,
                release=plan.release,
                noise=self._noise,
                expected_batch_size=plan.expected_batch_size,
                microbatch_size=self._gradients.microbatch,
                step=step,
                charge=self.privacy.charge,
                all_reduce=lambda total: self.reduce(total, reduce_op="sum"),
            )
        if self.log_nonprivate:
            self._gradients.log_nonprivate(self._batch)
        self._gradients.keep()
        self._gradients.put(gradient)
        self._batch = None
        return super().backward(closure_loss, optimizer, *args, **kwargs)

    def _like_a_training_batch(self, batch: Any) -> Any:
        """A public batch with all that Lightning does to a batch before training_step sees it."""
        batch = self.precision_plugin.convert_input([batch] if in_a_list(self._trainer) else batch)
        # With the underscore: it also finds the hook where it belongs to the datamodule, as training does.
        batch = LightningModule._on_before_batch_transfer(self._module, batch)
        return super().batch_to_device(batch)

    def diagnostics(self) -> dict[str, float]:
        """What clipping did at the last step. Functions of private data: not covered by ε."""
        seen = {} if self._diagnostics is None else self._diagnostics.averages()
        return {**seen, **self._statistics.values(self._basis_source.current)} if seen else {}

    # Checkpoints, the ledger and the privacy card.

    @property
    def card_directory(self) -> Path | None:
        """Where the privacy card of this process' newest fit is; None before a fit, and on ranks other than 0."""
        return None if self._card is None else self._card.directory

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        if self._card is not None:
            self._card.failed = True

    @override
    def teardown(self) -> None:
        if self.privacy is not None:
            self.privacy.close_ledger()
        if self._card is not None:
            self._card.end()
        if self._log_guard is not None:
            self._log_guard.remove()
            self._log_guard = None
        if self._transfer_guard is not None:
            self._transfer_guard.remove()
            self._transfer_guard = None
        self._own_randomness.close()
        super().teardown()

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if self._card is not None and self._fits:
            self._card.write()

    @property
    @override
    def _has_fitted(self) -> bool:
        return hasattr(self, "_basis_source")

    @override
    def _state(self) -> dict[str, Any]:
        assert self.privacy is not None
        source = self._basis_source
        return {
            "account": self.privacy.state_dict(),
            "subspace": source.state_dict() if isinstance(source, SharedBasis) else None,
            "chosen": dict(vars(self._chosen)),
            "ledger": None if self.privacy.ledger_path is None else str(self.privacy.ledger_path),
            "left_unprotected": [] if self._card is None else self._card.left,
        }

    def _notice_of_a_log(self, name: str, hook: str) -> None:
        check_monitors(self._trainer, [name])
        if self._card is not None:
            self._card.note_log(name)
        announce_later_log(name, hook, passed_on=self.log_nonprivate)

    def _make_card(
        self, trainer: Trainer, groups: ParameterGroups, logged: list[str], saved: dict[str, Any] | None
    ) -> RunCard:
        assert self.privacy is not None
        facts = RunFacts(
            mechanism=mechanism_section(self.settings, self.cost, self._chosen, groups, self.privacy.plan),
            generator=self.settings.generator,
            device=self._gradients.device.type,
            software=software(),
            public_data=public_data_section(self._public_records, uses_basis=self.settings.uses_basis),
            logged=tuple(logged),
            log_nonprivate=self.log_nonprivate,
            left_before=tuple(saved.get("left_unprotected", ()) if saved is not None else ()),
            processes=self.world_size,
        )
        where = card_directory(trainer.checkpoint_callbacks, trainer.default_root_dir)
        return RunCard(where, self.privacy, facts, rank_zero_warn)

    def _open_ledger(self, account: PrivacyAccount, saved: dict[str, Any] | None) -> None:
        """The first process keeps the ledger."""
        folder, checkpoint, trust = self._ledger_folder, self._checkpoint, self.trust_checkpoint
        self._on_first_process(lambda: open_ledger(account, folder, saved=saved, checkpoint=checkpoint, trust=trust))
        account.steps = self.broadcast(account.steps)

    def _check_ranks_agree(self, plan: PrivacyPlan) -> None:
        first = self.broadcast(plan.to_state())
        if first != plan.to_state():
            raise ConfigurationError(
                f"Process {self.global_rank} has other privacy settings than process 0: {plan.to_state()} instead of "
                f"{first}. Start all processes with the same configuration."
            )


def settled(settings: PrivacySettings) -> Thresholds:
    """What the settings say, none of them "auto"."""
    return Thresholds(settings.k, settings.clip_embedding, settings.clip_residual)  # type: ignore[arg-type]


def make_subspace(cost: CostSettings, sizes: Sequence[int], quotas: Sequence[int]) -> Subspace:
    """The source of the basis; raises ConfigurationError for settings that it cannot have."""
    if cost.subspace == "tracked":
        return TrackedSubspace(
            sizes, quotas, num_anchors=cost.anchors, decay=cost.decay, refresh_every=cost.refresh_every
        )
    if cost.subspace == "power":
        return PowerSubspace(sizes, quotas, iterations=cost.power_iterations, refresh_every=cost.refresh_every)
    return RandomSubspace(sizes, quotas, refresh_every=cost.refresh_every)


def planned_steps(trainer: Trainer, batches_per_epoch: int) -> int | None:
    """The number of steps of the whole run, or None if it has no end."""
    an_epoch = limited(batches_per_epoch, trainer.limit_train_batches)
    return total_steps(an_epoch, trainer.max_epochs, trainer.max_steps)


StrategyRegistry.register("gep", GEPStrategy, description="Differentially private training by GEP, ε = 8", epsilon=8.0)
