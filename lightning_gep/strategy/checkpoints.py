"""Continuing a run: its state, its ledger, and the proof that the same guarantee is asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lightning_gep.errors import ConfigurationError, LedgerError
from lightning_gep.privacy.account import PrivacyAccount, check_same_plan
from lightning_gep.privacy.plan import PrivacyPlan

CHECKPOINT_KEY = "lightning_gep"


def check_resumable(checkpoint: dict[str, Any], path: Path) -> None:
    """Raises ConfigurationError for a checkpoint to train on that is not of a private run."""
    if checkpoint.get(CHECKPOINT_KEY) is None:
        raise ConfigurationError(
            f"The checkpoint {path} has no privacy state, so its weights may know the training data. Resume a "
            "checkpoint of a GEPStrategy run; load weights that are public into the module yourself. If the fit that "
            "saved it ended before its first step, there is nothing to resume: fit without ckpt_path."
        )


def without_basis(saved: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's state for weights that are only looked at: the basis may be large, and can be computed again."""
    return {**saved, "subspace": None}


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
