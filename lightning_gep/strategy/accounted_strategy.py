"""A Lightning strategy base that follows the weights of modules, and what they have cost, through every call."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_gep.errors import ConfigurationError, LedgerError
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.strategy.checkpoints import CHECKPOINT_KEY, check_resumable, without_basis
from lightning_gep.strategy.origins import UNKNOWN, Origin, check_not_released, check_own, origin_of, set_origin
from lightning_gep.strategy.processes import ProcessStrategy
from lightning_gep.strategy.released_weights import ReleasedWeights, hashes_of, note_here, released_by


class AccountedStrategy(ProcessStrategy):
    """Keeps the privacy state of weights in every checkpoint of them, and says what a fit has to go on from.

    Guarantee: no fit begins, and no checkpoint is saved, with a smaller count than the weights of its module are known
    to have cost. Copies of weights are known by their values, if their run has saved them or ended with them, and if
    its ledger is in the folder of the new run or its weights have been in this process.
    """

    privacy: PrivacyAccount | None = None
    """What has been spent: of the newest fit, or of the weights that were loaded to look at."""
    _checkpoint: Path | None = None
    _trainer_of_run: Trainer | None = None
    _released: ReleasedWeights | None = None

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

    @override
    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        self._checkpoint = Path(checkpoint_path)
        if self._fits:
            check_resumable(checkpoint, self._checkpoint)
        return checkpoint

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        set_origin(self._module, UNKNOWN)  # some of the weights are there if it fails
        super().load_model_state_dict(checkpoint, strict)
        saved = checkpoint.get(CHECKPOINT_KEY)
        if saved is None:
            return
        note_here(saved.get("ledger"))
        if self._fits:
            self._go_on_from(saved)
            return
        account = PrivacyAccount.from_state(saved["account"])
        if self._has_fitted and self.privacy is not None and self.privacy.run_id == account.run_id:
            # A look at an earlier checkpoint of the run; or at a later one, if others have gone on with it.
            self.privacy.steps = max(self.privacy.steps, account.steps)
            self._count_on_own_account()
            return
        set_origin(self._module, Origin(account, without_basis(saved)))
        if not self._has_fitted:
            self.privacy = account

    def state_of_weights(self) -> dict[str, Any] | None:
        """What a checkpoint keeps, whoever asks for it and when; None if no run, or another's, made the weights."""
        origin = origin_of(self._module)
        if origin is not None and origin.state is not None:
            return origin.state
        return self._state() if self._weights_are_own else None

    def take_back(self, state: dict[str, Any] | None) -> None:
        """The weights, with this state, have come back from processes that were started for a fit."""
        if state is not None:
            note_here(state.get("ledger"))
            self._go_on_from(state)

    def _go_on_from(self, state: dict[str, Any]) -> None:
        self.privacy = PrivacyAccount.from_state(state["account"])
        set_origin(self._module, Origin(self.privacy, state, to_train_on=True))

    def _state_to_continue(self) -> dict[str, Any] | None:
        """That of the checkpoint to train on, or of an earlier fit of this strategy, which a second one continues."""
        origin = origin_of(self._module)
        if origin is not None:
            check_own(origin, self.privacy)
            if origin.to_train_on:
                return origin.state
        return self._state() if self._has_fitted else None

    def _count_on_own_account(self) -> None:
        """The weights are those of this run; to be called before the first release of a fit."""
        set_origin(self._module, Origin(self.privacy))

    @property
    def _weights_are_own(self) -> bool:
        origin = origin_of(self._module)
        return origin is not None and origin.state is None and origin.account is self.privacy is not None

    def _check_weights(self, *, trust: bool) -> None:
        """Raises ConfigurationError if the module holds weights that another private run is known to have released.

        With `trust` the user states that it shared no training record with this run, which is noted in the account.
        To be called with the weights of the first step, at the latest: what differs from them is released by this run.
        """
        self._on_first_process(lambda: self._compare_weights(hashes_of(self._tensors()), trust=trust))

    def _compare_weights(self, weights: Mapping[str, str], *, trust: bool) -> None:
        account = self.privacy
        assert account is not None
        note_here(account.ledger_path)
        runs = released_by(weights, self._ledger_folder, besides={account.run_id, *account.builds_on})
        if not trust:
            check_not_released(runs)
        elif runs:
            account.builds_on += [run.run_id for run in runs]
            rank_zero_warn(
                f"This run begins with weights of the private run {' and '.join(run.run_id for run in runs)}; "
                "trust_checkpoint=True states that they share no training record."
            )
        if account.ledger_path is not None:
            self._released = ReleasedWeights(account.ledger_path, weights.values())

    def _note_release(self, tensors: Mapping[str, Any]) -> None:
        if self._released is not None and self._weights_are_own:
            self._released.add(tensors)

    def _tensors(self) -> dict[str, Any]:
        return {**self._module.state_dict(), **dict(self._module.named_parameters())}

    def _on_first_process(self, action: Callable[[], None]) -> None:
        """Do something that concerns files in the first process; a problem with it stops all of them."""
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
        if self._fits and self._released is not None:
            self._note_release(self._tensors())
        super().teardown()

    @property
    def _ledger_folder(self) -> Path:
        return Path(self._trainer.default_root_dir) / "privacy"

    @property
    @abstractmethod
    def _has_fitted(self) -> bool:
        """Whether there is a state to go on from."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """The state of the newest fit."""

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    @property
    def _trainer(self) -> Trainer:
        # Not the module's: a second trainer, which tests it, say, takes its place there.
        assert self._trainer_of_run is not None
        return self._trainer_of_run

    @property
    def _fits(self) -> bool:
        return self._trainer_of_run is not None and self._trainer_of_run.state.fn == TrainerFn.FITTING
