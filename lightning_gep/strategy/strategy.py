"""GEPStrategy: overrides of Lightning's hooks that make a run differentially private."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_gep.algorithm.diagnostics import BatchStatistics, Diagnostics
from lightning_gep.algorithm.groups import Grouping
from lightning_gep.privacy.release import Clipping, Split
from lightning_gep.strategy.announcement import announce, announce_later_log, warn_of_unused
from lightning_gep.strategy.checkpoints import AccountedStrategy
from lightning_gep.strategy.data import PoissonLoader, PrivateBatch, closed_batch
from lightning_gep.strategy.fit import make_subspace, prepare_fit
from lightning_gep.strategy.guards import guarded
from lightning_gep.strategy.internals import on_before_batch_transfer, train_loader_in_list
from lightning_gep.strategy.refusals import (
    HeldOutCheck,
    check_loader,
    check_module,
    check_monitors,
    check_sampled,
    check_trainer,
    several_optimizers_refused,
)
from lightning_gep.strategy.settings import (
    AccountantName,
    Auto,
    BackendName,
    CostSettings,
    Generator,
    MechanismName,
    PrivacySettings,
    StartMethod,
    SubspaceName,
    settings_from,
)
from lightning_gep.strategy.task import Task


class GEPStrategy(AccountedStrategy):
    """Makes a Lightning run differentially private, on one device or several.

    The (ε, δ) guarantee is for adding or removing one training record, and covers the weights and everything computed
    from them. Module, loaders and optimizer stay as they are: the train loader is sampled by Poisson, the loss of
    `training_step` is differentiated for each record, and `p.grad` holds the noisy mean. `strategy.privacy` is the
    account of the run: `.epsilon()`, `.steps`, `.report()`. Settings of another `mechanism` or `subspace` have no
    effect.

    Args:
        epsilon: The target ε; the noise is calibrated to reach it at the end of training, and no step is released
            beyond it. Default None: give `noise_multiplier` instead. A run that is continued may have a larger one: it
            keeps its noise, and all of its steps count.
        delta: The δ of the guarantee. Default None: the largest power of ten below 1/N. Set it to compare runs.
        k: The total number of basis vectors. Default "auto": chosen on public data, with a basis of at most 512 MB.
            More vectors capture more of the gradient but need more memory, more public records and more noise.
        noise_multiplier: The noise multiplier σ of a step, instead of `epsilon`. 0 trains without privacy (ε = ∞).
            Default None.
        accountant: "pld" (default, tight); "rdp", faster with a looser bound; or "prv", Opacus' accountant, to compare
            with its figures (needs the extra `prv`).
        generator: The source of sampling and noise: "system" (default); "secure", which is cryptographically secure and
            slower; or "seeded", which is reproducible, for tests, and NOT private.
        seed: The seed of generator="seeded". Default 0. Change it to repeat a test with other draws.
        mechanism: "gep" (default); "bgep", without the residual: less noise, but biased; "gp", which is DP-SGD
            without public data; or "spectral", DP-SGD with noise shaped by the spectrum of the public gradients.
        clip_embedding: The L2 norm to which embeddings are clipped (S₁). Default "auto": chosen on public data. Give a
            number to compare runs at the same thresholds, or to plan their noise.
        clip_residual: The L2 norm to which residuals are clipped (S₂). Default "auto": chosen on public data. Lower it
            if the residual's noise dominates, which grows with S₂√p.
        clip_norm: The L2 norm to which mechanism="gp" and "spectral" clip gradients. Default 1.0. "auto" chooses
            it on public data: half the median norm, at most 1. Noise is proportional to it.
        clipping: "separate" (default) or "joint", which clips embedding and residual by their common norm; then both
            have the same σ, and the ratio of the two thresholds balances them.
        split: How GEP divides the budget between embedding and residual: "optimal" (default), "equal" as in the paper,
            or a pair of sigmas of which only the ratio counts.
        groups: How parameters are grouped, each group with its own basis. Default "balanced"; see
            `ParameterGroups.from_module` for other groupings and for your own.
        subspace: "tracked" (default) updates the basis with a few new public gradients at a time; "power" computes it
            anew, as in the paper; "random" needs no public gradients and serves as a baseline.
        num_anchors: Public records per refresh of the basis. Default None: 50, or 2000 for "power". More
            give a better basis and cost as much time as private records.
        refresh_every: Steps between two refreshes; larger values are faster, with an older basis. Default None: 1, but
            4 for mechanism="spectral". In several processes it is 12 there, with three times the anchors: they exchange
            less that way.
        decay: How much of its spectrum a tracked basis keeps per refresh, from 0 to 1. Default 0.95, a memory of about
            20 refreshes. Lower it if the weights move fast.
        power_iterations: Iterations of subspace="power". Default 1, as in the paper. Each further one reads all anchors
            again, for a basis closer to their principal components.
        precondition: Keep the scaling by the public spectrum in the update of mechanism="spectral", which is often the
            better step but not the gradient any more. Default False: the update is an unbiased gradient.
        residual_memory: For mechanism="gep": the share β of a running mean over the noisy residuals of past steps that
            a step keeps, from 0 to below 1. Default 0.0: each step uses its own. Larger values have less noise and
            follow the gradient with a delay of about 1/(1−β) steps. It costs no privacy.
        microbatch_size: Records whose gradients are held in memory at a time. Default "auto": what fits the device.
            Lower it if memory runs out; the result does not depend on it.
        gradients: How per-sample gradients are computed: "functional" (vectorized), "loop" (record by record, for any
            module), "hooks" (Opacus; needs the extra `hooks`), or "ghost", which gets norms and sums without forming
            them, for mechanism="gp" and "spectral". Default "auto": ghost for "spectral", and for "gp" with more than a
            million parameters, else functional, else loop: the first that gives correct gradients on public records.
        aux_dataloader: A DataLoader of public records, or a function that returns one. Default None: the method
            `aux_dataloader()` of the datamodule or module. It must not overlap with the training data.
        log_nonprivate: Log what training computes from private records, as `nonprivate/<name>`, and show error messages
            that may contain their values. Default False: such values are dropped. No ε covers them.
        trust_checkpoint: Resume although the ledger of the run is lost, stating that no step was made after the
            checkpoint; or start from the weights of another private run, stating that the two share no training
            record. Default False.
        public_data_is_disjoint: State that no public record is a training record, so that their contents are not
            compared. Default False. The privacy card shows it.
        start_method: How processes for further devices start: "popen" (default) runs the script again; "fork",
            "spawn" and "forkserver" are for notebooks.
        timeout: Seconds after which a process that does not answer ends the run. Default 1800.0.

    Raises:
        ConfigurationError: For settings that cannot work; and by `Trainer.fit`, before any release, for data, modules,
            callbacks and trainer settings that cannot be trained privately.
        BudgetExhaustedError: By `Trainer.fit`, if a step would exceed the target; see `PrivacyBudget`.
        LedgerError: By `Trainer.fit`, if the ledger of a resumed run is missing, damaged or in use.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_gep import GEPStrategy
        >>> strategy = GEPStrategy(epsilon=8.0, delta=1e-5, k=1000)
        >>> trainer = Trainer(max_epochs=50, strategy=strategy)
        >>> trainer.fit(module, datamodule)  # doctest: +SKIP
        >>> strategy.privacy.epsilon()  # doctest: +SKIP

    """

    _rows_needed = False
    """Whether someone looks at the gradients of single records, whatever the mechanism needs."""

    def __init__(
        self,
        epsilon: float | None = PrivacySettings.epsilon,
        delta: float | None = PrivacySettings.delta,
        k: int | Auto = PrivacySettings.k,
        *,
        noise_multiplier: float | None = PrivacySettings.noise_multiplier,
        accountant: AccountantName = PrivacySettings.accountant,
        generator: Generator = PrivacySettings.generator,
        seed: int = PrivacySettings.seed,
        mechanism: MechanismName = PrivacySettings.mechanism,
        clip_embedding: float | Auto = PrivacySettings.clip_embedding,
        clip_residual: float | Auto = PrivacySettings.clip_residual,
        clip_norm: float | Auto = PrivacySettings.clip_norm,
        clipping: Clipping = PrivacySettings.clipping,
        split: Split = PrivacySettings.split,
        groups: Grouping = CostSettings.groups,
        subspace: SubspaceName = CostSettings.subspace,
        num_anchors: int | None = CostSettings.num_anchors,
        refresh_every: int | None = CostSettings.refresh_every,
        decay: float = CostSettings.decay,
        power_iterations: int = CostSettings.power_iterations,
        precondition: bool = CostSettings.precondition,
        residual_memory: float = CostSettings.residual_memory,
        microbatch_size: int | Auto = CostSettings.microbatch_size,
        gradients: BackendName = CostSettings.gradients,
        aux_dataloader: DataLoader[Any] | Callable[[], DataLoader[Any]] | None = CostSettings.aux_dataloader,
        log_nonprivate: bool = PrivacySettings.log_nonprivate,
        trust_checkpoint: bool = PrivacySettings.trust_checkpoint,
        public_data_is_disjoint: bool = PrivacySettings.public_data_is_disjoint,
        start_method: StartMethod = CostSettings.start_method,
        timeout: float = CostSettings.timeout,
    ) -> None:
        self.settings, self.cost = settings_from(locals())
        make_subspace(self.cost, (1,), (1,))  # refuses wrong settings now
        warn_of_unused(self.settings)
        super().__init__(start_method=start_method, timeout=timeout)
        self._trust_checkpoint = trust_checkpoint
        self._held_out = HeldOutCheck()
        self._guards = ExitStack()
        self._batch: Any = None
        self._diagnostics: Diagnostics | None = None
        self._statistics = BatchStatistics()

    def __repr__(self) -> str:
        return f"GEPStrategy(for lightning.pytorch.Trainer, not for pytorch_lightning.Trainer; {self.settings})"

    @override
    def setup(self, trainer: Trainer) -> None:
        self._held_out = HeldOutCheck()
        if self._fits:
            check_trainer(trainer)  # before callbacks that try out steps
        super().setup(trainer)
        if self._fits:
            check_module(self._module, self.optimizers)

    @override
    def setup_optimizers(self, trainer: Trainer) -> None:
        with several_optimizers_refused():
            super().setup_optimizers(trainer)

    @override
    def process_dataloader(self, dataloader: object) -> object:
        """Everything is checked and calibrated when the trainer hands over the train loader."""
        trainer = self._trainer
        if not (self._fits and trainer.training):
            self._held_out.add_validation(dataloader)
            return self.divided(dataloader, trainer)
        loader = check_loader(dataloader)
        self._held_out.set_training(trainer, loader.dataset)
        transfer = self._like_a_training_batch
        task = Task(
            self.settings, self.cost, trainer, self._module, loader, self.processes, transfer, self._rows_needed
        )
        continued = self._continued()
        fit = prepare_fit(task, continued)
        self._begin(fit, continued)
        announce(self.settings, fit, trial=trainer.fast_dev_run and continued is None)  # type: ignore[attr-defined]
        size = fit.sampler.expected_batch_size
        guards = guarded(self._module, trainer, self.settings, batch_size=size, notice=self._notice_log)
        self._guards.enter_context(guards)
        return PoissonLoader(
            loader,
            fit.sampler,
            lambda: trainer.global_step,
            repeatable=not self.settings.private,
            reveal_errors=self.settings.log_nonprivate,
            lengths=fit.lengths,
        )

    def _like_a_training_batch(self, batch: Any) -> Any:
        """A public batch after everything that Lightning does to a batch before training_step gets it."""
        batch = self.precision_plugin.convert_input([batch] if train_loader_in_list(self._trainer) else batch)
        return super().batch_to_device(on_before_batch_transfer(self._module, batch))

    def _notice_log(self, name: str, hook: str) -> None:
        check_monitors(self._trainer, [name])
        if self._card is not None:
            self._card.note_log(name)
        announce_later_log(name, hook, log_nonprivate=self.settings.log_nonprivate)

    @override
    def on_train_start(self) -> None:
        check_sampled(self._trainer)
        super().on_train_start()

    @override
    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        if not (self._fits and self._trainer.training):
            return super().batch_to_device(batch, device, dataloader_idx)
        # Hooks get the batch before training_step does, and could change it or keep records.
        move = super().batch_to_device
        settings = self.settings
        return closed_batch(
            batch,
            lambda own: move(own, device, dataloader_idx),
            reveal=settings.log_nonprivate,
            repeatable=not settings.private,
        )

    @override
    def training_step(self, batch: PrivateBatch, *arguments: Any, **_: Any) -> Tensor:
        """Keeps the batch for `backward`; the loss is private and does not leave the strategy."""
        assert self.prepared is not None
        self._batch, self.prepared.gradients.arguments = batch.open(), arguments
        return torch.zeros((), device=self.root_device, requires_grad=True)

    @override
    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Puts the private gradient into p.grad, then lets Lightning run its hooks on a loss without gradients."""
        fit, step = self.prepared, self._trainer.global_step
        assert fit is not None
        fit.checks.before_a_release(self._trainer, self.optimizers[0])
        self._statistics = BatchStatistics()
        reveal = self.settings.log_nonprivate
        gradient, self._diagnostics = fit.release(self._batch, step, self._statistics if reveal else None)
        if reveal:
            fit.gradients.log_nonprivate(self._batch)
        fit.gradients.keep()
        fit.gradients.put(gradient)
        self._batch = None
        return super().backward(closure_loss, optimizer, *args, **kwargs)

    def diagnostics(self) -> dict[str, float]:
        """Statistics of gradients and clipping at the last step. They depend on private data; no ε covers them."""
        seen = {} if self._diagnostics is None else self._diagnostics.averages()
        return {**seen, **self._statistics.values(self.prepared.basis_source.current)} if seen and self.prepared else {}

    @override
    def teardown(self) -> None:
        self._guards.close()
        super().teardown()
