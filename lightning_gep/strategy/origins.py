"""Which private run the weights of a module come from: noted while the module lives, and told from the weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.strategy.released_weights import ReleasedBy

CONTINUE = (
    "so a training that begins with them would count too few. Continue that run with fit(..., ckpt_path=...), or start "
    "with a new module, strategy and trainer. If none of its training records is among those of this run, load its "
    "weights into a new module, new.load_state_dict(old.state_dict()), and say so with trust_checkpoint=True."
)


@dataclass(frozen=True)
class Origin:
    """Where weights come from: a fit in this process, or a checkpoint with its `state`."""

    account: PrivacyAccount | None
    """What they have cost so far; None: not known."""
    state: dict[str, Any] | None = None
    to_train_on: bool = False
    """Whether the checkpoint was loaded to go on with its training."""


UNKNOWN = Origin(None)
_ORIGINS: WeakKeyDictionary[nn.Module, Origin] = WeakKeyDictionary()


def origin_of(module: nn.Module) -> Origin | None:
    """Where the weights of a module come from; None if no private run is known to have touched them."""
    return _ORIGINS.get(module)


def set_origin(module: nn.Module, origin: Origin) -> None:
    """Note where the weights of a module come from now."""
    _ORIGINS[module] = origin


def check_own(origin: Origin, account: PrivacyAccount | None) -> None:
    """Raises ConfigurationError unless a fit that counts on `account` may go on with weights of this origin.

    Weights know every run that made them: a count that begins anew, or that of another run, would be too small.
    """
    if origin.account is None:
        raise ConfigurationError(
            "The weights come from a checkpoint that has no privacy state or could not be loaded as a whole, so they "
            "may know the training data. Start with a new module; load weights that are public into it yourself."
        )
    goes_on = origin.account is account and (origin.state is None or origin.to_train_on)
    if origin.account.steps > 0 and not goes_on:
        raise ConfigurationError(
            f"The weights come from a private run that had made {origin.account.steps} steps, {CONTINUE}"
        )


def check_not_released(runs: Sequence[ReleasedBy]) -> None:
    """Raises ConfigurationError if other runs have released weights that a fit would begin with, all or some."""
    if runs:
        run, steps = runs[0], runs[0].steps
        made = "" if steps is None else f" that had made {steps} steps"
        raise ConfigurationError(f"The weights in {run.name} come from a private run{made} ({run.ledger}), {CONTINUE}")
