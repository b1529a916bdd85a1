"""Continuing a run: its state, its ledger, and the proof that the same guarantee is asked for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lightning_gep.account import PrivacyAccount, check_same_plan
from lightning_gep.errors import ConfigurationError, LedgerError
from lightning_gep.plan import PrivacyPlan

CHECKPOINT_KEY = "lightning_gep"


class Resumption:
    """What the next fit goes on from: a checkpoint that was loaded for it, the fit before it, or nothing."""

    def __init__(self) -> None:
        self.path: Path | None = None
        """Of the newest checkpoint that training went on from."""
        self._saved: dict[str, Any] | None = None
        self._evaluated: dict[str, Any] | None = None

    def resume(self, checkpoint: dict[str, Any], path: Path) -> PrivacyAccount:
        """A checkpoint was loaded to train on. Gives its account, or raises ConfigurationError if it has none."""
        saved = checkpoint.get(CHECKPOINT_KEY)
        if saved is None:
            raise ConfigurationError(
                f"The checkpoint {path} has no privacy state, so its weights may know the training data. Resume a "
                "checkpoint of a GEPStrategy run; load weights that are public into the module yourself."
            )
        self._saved, self.path, self._evaluated = saved, path, None
        return PrivacyAccount.from_state(saved["account"])

    def evaluate(self, checkpoint: dict[str, Any], account: PrivacyAccount | None) -> PrivacyAccount | None:
        """A checkpoint was loaded, but not to train on. Gives the account to report: the present one, or its own."""
        saved = checkpoint.get(CHECKPOINT_KEY)
        if saved is None:
            return account
        loaded = PrivacyAccount.from_state(saved["account"])
        if account is None or loaded.run_id != account.run_id:
            self._evaluated = {**saved, "subspace": None}  # which may be large, and can be computed again
        return loaded if account is None else account

    def state(self, of_the_fit_before: Callable[[], dict[str, Any]] | None) -> dict[str, Any] | None:
        """The state to go on from. Raises ConfigurationError if the weights are those of another private run."""
        if self._evaluated is not None:
            steps = PrivacyAccount.from_state(self._evaluated["account"]).steps
            raise ConfigurationError(
                f"The weights come from a checkpoint of a private run that had made {steps} steps, so "
                "a training that begins with them would count too few. Continue that run with "
                "fit(..., ckpt_path=...), or start with a new module, strategy and trainer."
            )
        return of_the_fit_before() if self._saved is None and of_the_fit_before is not None else self._saved

    @property
    def state_of_weights(self) -> dict[str, Any] | None:
        """What a checkpoint has to keep while the weights are still those that were loaded; None once a fit began."""
        return self._saved if self._evaluated is None else self._evaluated

    def begun(self) -> None:
        """A fit has taken the state over, and changes the weights from now on."""
        self._saved = None


def check_same_guarantee(saved: PrivacyPlan, asked: PrivacyPlan, target_epsilon: float | None) -> None:
    """Raises ConfigurationError if what is asked for now differs from the saved plan in more than its length.

    The noise stays what it was, so a longer training ends at the budget and a shorter one below it.
    """
    check_same_plan(saved, replace(asked, planned_steps=saved.planned_steps, target_epsilon=target_epsilon))


def open_ledger(
    account: PrivacyAccount, folder: Path, *, saved: dict[str, Any] | None, checkpoint: Path | None, trust: bool
) -> None:
    """A new ledger for a new run; for a continued one its own, whose count is taken if it is larger."""
    own = folder / f"{account.run_id}.ledger"
    if saved is None:
        account.open_ledger(own)
        return
    found = next((place for place in _places(own, saved, checkpoint) if place.exists()), None)
    if found is not None:
        account.resume_ledger(found)
    elif trust:
        rank_zero_warn(
            f"The ledger {own.name} is missing; trust_checkpoint=True takes the checkpoint's count of {account.steps} "
            "steps. Steps made after the checkpoint are not counted."
        )
        account.trusted = True
        account.open_ledger(own)
    else:
        raise LedgerError(
            f"The ledger {own.name} of this run is missing (looked in {own.parent} and near the checkpoint). Releases "
            "made after the checkpoint would go uncounted. Restore the file, or state with trust_checkpoint=True that "
            "there were none."
        )


def _places(own: Path, saved: dict[str, Any], checkpoint: Path | None) -> list[Path]:
    """Where the ledger may be: where it was, where a new one would be, and near the checkpoint if all were moved."""
    places = [Path(saved["ledger"])] if saved.get("ledger") else []
    places.append(own)
    if checkpoint is not None:
        places += [parent / own.parent.name / own.name for parent in checkpoint.resolve().parents[:4]]
    return places
