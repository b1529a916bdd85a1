"""A Lightning strategy base that follows the weights of modules, and what they have cost, through every call."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from lightning_gep.account import PrivacyAccount
from lightning_gep.origins import UNKNOWN, Origin, check_own, origin_of, set_origin
from lightning_gep.processes import ProcessStrategy
from lightning_gep.resumption import CHECKPOINT_KEY, check_resumable, without_basis


class AccountedStrategy(ProcessStrategy):
    """Keeps the privacy state of weights in every checkpoint of them, and says what a fit has to go on from.

    Guarantee: no fit begins, and no checkpoint is saved, with a smaller count than the weights of its module are known
    to have cost.
    """

    privacy: PrivacyAccount | None = None
    """What has been spent: of the newest fit, or of the weights that were loaded to look at."""
    _checkpoint: Path | None = None
    _trainer_of_run: Trainer | None = None

    @override
    def connect(self, model: LightningModule) -> None:
        super().connect(model)
        self._trainer_of_run = model.trainer

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        state = self.state_of_weights()
        if state is not None:
            checkpoint[CHECKPOINT_KEY] = state
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

    @override
    def state_of_weights(self) -> dict[str, Any] | None:
        """What a checkpoint keeps, whoever asks for it and when; None if no run, or another's, made the weights."""
        origin = origin_of(self._module)
        if origin is None or origin.state is not None:
            return None if origin is None else origin.state
        return self._state() if origin.account is not None and origin.account is self.privacy else None

    @override
    def take_back(self, state: dict[str, Any] | None) -> None:
        if state is not None:
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
