"""A Lightning strategy base that tracks, through every call, the weights of modules and what they have cost."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from typing_extensions import override

from lightning_gep.errors import ConfigurationError, LedgerError
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.ledger import read_or_none
from lightning_gep.strategy.fit import Fit
from lightning_gep.strategy.origins import (
    ORIGINS,
    UNKNOWN,
    Origin,
    ReleasedWeights,
    check_not_released,
    check_own,
    hashes_of,
    note_here,
    released_by,
)
from lightning_gep.strategy.processes import ProcessStrategy
from lightning_gep.strategy.requeue import RequeueSignal
from lightning_gep.strategy.run_card import RunCard

CHECKPOINT_KEY = "lightning_gep"


class AccountedStrategy(ProcessStrategy):
    """Keeps the privacy state of weights in every checkpoint, and decides what a fit continues.

    Guarantee: no fit starts, and no checkpoint is saved, with a lower count than the weights of its module are known
    to have cost. Copies of weights are recognized by their values if their run has saved them or ended with them, and
    if its ledger is in the folder of the new run or its weights have been in this process.
    """

    privacy: PrivacyAccount | None = None
    """What has been spent: by the newest fit, or by the run whose weights were loaded for evaluation."""
    prepared: Fit | None = None
    """Everything the newest fit decided before its first step."""
    _trust_checkpoint = False
    _checkpoint: Path | None = None
    _last_saved: str | None = None
    _trainer_of_run: Trainer | None = None
    _released: ReleasedWeights | None = None
    _failed = False
    _requeue: RequeueSignal | None = None

    @override
    def connect(self, model: LightningModule) -> None:
        super().connect(model)
        self._trainer_of_run = model.trainer

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        state = self.state_of_weights()
        if state is not None:
            checkpoint[CHECKPOINT_KEY] = state
        self._note_release(checkpoint.get("state_dict", {}))
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if self._fits:
            self._last_saved = str(filepath)
        if self._card is not None and self._fits:
            self._card.write()

    @override
    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        # Whatever the versions of torch and Lightning do by default: a pickle can run any code.
        safely = True if weights_only is None else weights_only
        try:
            checkpoint = super().load_checkpoint(checkpoint_path, safely)
        except (EOFError, RuntimeError, UnpicklingError) as error:
            raise ConfigurationError(
                f"The checkpoint {checkpoint_path} cannot be read: it is damaged, incomplete, or holds objects other "
                "than tensors and plain values, which Trainer.fit(weights_only=False) loads if you trust the file. "
                f"({type(error).__name__}: {str(error).partition(chr(10))[0]})"
            ) from error
        self._checkpoint = Path(checkpoint_path)
        if self._fits and checkpoint.get(CHECKPOINT_KEY) is None:
            raise ConfigurationError(
                f"The checkpoint {checkpoint_path} has no privacy state, so its weights may depend on the training "
                "data. Resume a checkpoint of a GEPStrategy run; load public weights into the module yourself. If the "
                "fit that saved it ended before its first step, there is nothing to resume: fit without ckpt_path."
            )
        return checkpoint

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        ORIGINS[self._module] = UNKNOWN  # if it fails, some of the weights have been loaded
        super().load_model_state_dict(checkpoint, strict)
        saved = checkpoint.get(CHECKPOINT_KEY)
        if saved is None:
            return
        note_here(saved.get("ledger"))
        if self._fits:
            self._continue_from(saved)
            return
        account = PrivacyAccount.from_state(saved["account"])
        own = None if self.prepared is None else self.prepared.account
        if own is not None and own.run_id == account.run_id:
            # An earlier checkpoint of the same run; or a later one, if another process has continued it.
            own.steps = max(own.steps, account.steps)
            ORIGINS[self._module] = Origin(own)
            return
        ORIGINS[self._module] = Origin(account, without_basis(saved))
        if own is None:
            self.privacy = account

    def state_of_weights(self) -> dict[str, Any] | None:
        """The privacy state to keep with the weights, whoever saves them; None if no private run produced them."""
        origin = ORIGINS.get(self._module)
        if origin is not None and origin.state is not None:
            return origin.state
        return self.prepared.state() if self.prepared is not None and self._weights_are_own else None

    def take_back(self, state: dict[str, Any] | None) -> None:
        """The weights have come back, with this state, from processes that were started for a fit."""
        if state is not None:
            note_here(state.get("ledger"))
            self._continue_from(state)

    def _continue_from(self, state: dict[str, Any]) -> None:
        self.privacy = PrivacyAccount.from_state(state["account"])
        ORIGINS[self._module] = Origin(self.privacy, state, to_train_on=True)

    def _continued(self) -> Origin | None:
        """The run a fit continues: that of the checkpoint to train on, or of an earlier fit of this strategy."""
        origin = ORIGINS.get(self._module)
        if origin is not None:
            check_own(origin, self.privacy)
            if origin.to_train_on:
                return origin
        return None if self.prepared is None else Origin(self.prepared.account, self.prepared.state())

    def _begin(self, fit: Fit, continued: Origin | None) -> None:
        """Open the ledger of a fit and count its releases there; call before the first one."""
        self.privacy, self._failed, self._requeue = fit.account, False, RequeueSignal(self.cluster_environment)
        if continued is None:
            self._on_first_process(self._check_weights)
        self._on_first_process(lambda: self._open_ledger(fit.account, continued))
        fit.account.steps = self.broadcast(fit.account.steps)
        # Not earlier: a refused fit leaves the weights of the checkpoint in the module.
        self.prepared = fit
        ORIGINS[self._module] = Origin(fit.account)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        assert self._requeue is not None
        self._requeue.answer(lambda arrived: self.reduce_boolean_decision(arrived, all=False))

    @override
    def on_train_start(self) -> None:
        # Again, for the weights of the first step: hooks may have loaded some.
        self._on_first_process(self._check_weights)
        if self._card is not None:
            self._card.start()

    def _check_weights(self) -> None:
        """Raises ConfigurationError if the module holds weights that another private run is known to have released.

        With `trust_checkpoint` the user states that the two runs share no training record; the account notes it. Call
        with the weights of the first step, at the latest: this run releases what differs from them.
        """
        account, weights = self.privacy, hashes_of(self._tensors())
        assert account is not None
        note_here(account.ledger_path)
        runs = released_by(weights, self._ledger_folder, besides={account.run_id, *account.builds_on})
        if not self._trust_checkpoint:
            check_not_released(runs)
        elif runs:
            names = [ledger.stem for ledger in runs]
            account.builds_on += names
            rank_zero_warn(
                f"This run starts from weights of the private run {' and '.join(names)}; trust_checkpoint=True states "
                "that they share no training record."
            )
        if account.ledger_path is not None:
            self._released = ReleasedWeights(account.ledger_path, weights.values())

    def _open_ledger(self, account: PrivacyAccount, continued: Origin | None) -> None:
        """A new ledger for a new run; for a continued one its own, whose count is used if it is larger."""
        own = self._ledger_folder / f"{account.run_id}.ledger"
        if continued is None or continued.state is None:
            _warn_of_unfinished(self._ledger_folder)
            account.open_ledger(own)
            return
        found = next((place for place in _places(own, continued.state, self._checkpoint) if place.exists()), None)
        if found is not None:
            account.resume_ledger(found)
        elif self._trust_checkpoint:
            rank_zero_warn(
                f"The ledger {own.name} is missing; trust_checkpoint=True uses the checkpoint's count of "
                f"{account.steps} steps. Steps made after the checkpoint are not counted."
            )
            account.trusted = True
            account.open_ledger(own)
        else:
            raise LedgerError(
                f"The ledger {own.name} of this run is missing (searched {own.parent} and near the checkpoint). "
                "Releases made after the checkpoint would go uncounted. Restore the file, or state with "
                "trust_checkpoint=True that there were none."
            )

    @property
    def _weights_are_own(self) -> bool:
        origin = ORIGINS.get(self._module)
        own = None if self.prepared is None else self.prepared.account
        return origin is not None and origin.state is None and origin.account is own is not None

    def _note_release(self, tensors: Mapping[str, Any]) -> None:
        if self._released is not None and self._weights_are_own:
            self._released.add(tensors)

    def _tensors(self) -> dict[str, Any]:
        return {**self._module.state_dict(), **dict(self._module.named_parameters())}

    def _on_first_process(self, action: Callable[[], None]) -> None:
        """Run something that accesses files in the first process; its error stops all processes."""
        problem: Exception | None = None
        if self.is_global_zero:
            try:
                action()
            except (LedgerError, ConfigurationError) as error:
                problem = error
        problem = self.broadcast(problem)
        if problem is not None:
            raise problem

    @override
    def teardown(self) -> None:
        if self.privacy is not None:
            self.privacy.close_ledger()
        if self._card is not None:
            self._card.end()
        if self._fits and self._released is not None:
            self._note_release(self._tensors())
        if self._failed and self.prepared is not None and self.prepared.account.steps == 0:
            self.prepared.account.discard_ledger()
            self.prepared = None  # nothing was released, so the next fit is the first
        super().teardown()

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        self._failed = True
        if self._card is not None:
            self._card.failed = True
        if isinstance(exception, KeyboardInterrupt) and self._fits and self.prepared is not None:
            _say_how_to_continue(self.prepared.account, self._last_saved)

    @property
    def card_directory(self) -> Path | None:
        """Where the privacy card of the newest fit is; None before a fit and in all processes but the first."""
        return None if self._card is None else self._card.directory

    @property
    def _card(self) -> RunCard | None:
        return None if self.prepared is None else self.prepared.card

    @property
    def _ledger_folder(self) -> Path:
        return Path(self._trainer.default_root_dir) / "privacy"

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    @property
    def _trainer(self) -> Trainer:
        # Not the module's trainer, which may by now be another one that tests it.
        assert self._trainer_of_run is not None
        return self._trainer_of_run

    @property
    def _fits(self) -> bool:
        return self._trainer_of_run is not None and self._trainer_of_run.state.fn == TrainerFn.FITTING


def without_basis(saved: dict[str, Any]) -> dict[str, Any]:
    """A privacy state without what may be large and can be computed again: its basis, and a running mean."""
    return {**saved, "subspace": None, "residual_memory": None}


def _say_how_to_continue(account: PrivacyAccount, checkpoint: str | None) -> None:
    """After an interruption, where the run can be taken up again: to start anew instead costs its ε once more."""
    planned = account.plan.planned_steps
    if checkpoint is not None and (planned is None or account.steps < planned):
        of = "" if planned is None else f" of {planned}"
        rank_zero_info(
            f"Interrupted after {account.steps}{of} steps. To continue, fit with ckpt_path={checkpoint!r}: "
            "a new run on the same records would spend ε again."
        )


def _warn_of_unfinished(folder: Path) -> None:
    """A warning if the newest run in a folder could be continued: to start anew instead costs its ε once more."""
    newest = max(folder.glob("*.ledger"), key=lambda path: path.stat().st_mtime, default=None)
    content = None
    with suppress(LedgerError):  # of a damaged ledger, which is not this run's
        content = None if newest is None else read_or_none(newest)
    planned = None if content is None else content.parameters.get("plan", {}).get("planned_steps")
    if content is not None and planned is not None and 0 < content.count < planned:
        rank_zero_warn(
            f"The last run in {folder} made {content.count} of {planned} steps, and this fit starts anew. If both "
            "train on the same records, their ε adds up. To continue that run, pass the path of its checkpoint as "
            "ckpt_path; 'last' finds only what ModelCheckpoint(save_last=True) has saved."
        )


def _places(own: Path, saved: dict[str, Any], checkpoint: Path | None) -> list[Path]:
    """Where the ledger may be: where it was, where a new one would be, and near the checkpoint if all were moved."""
    places = [Path(saved["ledger"])] if saved.get("ledger") else []
    places.append(own)
    if checkpoint is not None:
        places += [parent / own.parent.name / own.name for parent in checkpoint.resolve().parents[:4]]
    return places
