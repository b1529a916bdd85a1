"""Which private runs the weights of a module come from: noted while the module lives, and recognized by hashes."""

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.ledger import read_or_none

FEWEST_ELEMENTS = 4
"""Smaller tensors are not recognized: they may be equal by chance."""
SUFFIX = ".weights"
CONTINUE = (
    "so a fit that starts from them would count too few steps. Continue that run with fit(..., ckpt_path=...), or "
    "start with a new module, strategy and trainer. If the two runs share no training record, load its weights into a "
    "new module, new.load_state_dict(old.state_dict()), and set trust_checkpoint=True."
)


@dataclass(frozen=True)
class Origin:
    """Where weights come from: a fit in this process, or a checkpoint with its `state`."""

    account: PrivacyAccount | None
    """What they have cost so far; None if unknown."""
    state: dict[str, Any] | None = None
    to_train_on: bool = False
    """Whether the checkpoint was loaded to continue its training."""


UNKNOWN = Origin(None)
ORIGINS: WeakKeyDictionary[nn.Module, Origin] = WeakKeyDictionary()
"""Where the weights of modules come from; those that no private run is known to have produced are not in it."""
RUNS_IN_THIS_PROCESS: set[Path] = set()
"""Hashes of the runs whose weights have been in this process, in any folder."""


def check_own(origin: Origin, account: PrivacyAccount | None) -> None:
    """Raises ConfigurationError unless a fit that counts on `account` may start from weights of this origin.

    Weights depend on every run that produced them: a count that starts over, or that of another run, would be too low.
    """
    if origin.account is None:
        raise ConfigurationError(
            "The weights come from a checkpoint that has no privacy state or was loaded only in part, so they may "
            "depend on the training data. Start with a new module, and load public weights into it yourself."
        )
    continues = origin.account is account and (origin.state is None or origin.to_train_on)
    if origin.account.steps > 0 and not continues:
        raise ConfigurationError(
            f"The weights come from a private run that had made {origin.account.steps} steps, {CONTINUE}"
        )


def check_not_released(runs: Mapping[Path, str]) -> None:
    """Raises ConfigurationError if other runs have released some of the weights that a fit would start from."""
    for ledger, name in runs.items():
        content = read_or_none(ledger)
        made = "" if content is None else f" that had made {content.count} steps"
        raise ConfigurationError(f"The weights in {name} come from a private run{made} ({ledger}), {CONTINUE}")


class ReleasedWeights:
    """Hashes of the weights that one fit releases, in an append-only file beside its ledger, one per line.

    Guarantee: when `add` returns, the hashes of all tensors that differ from those the fit started with are on disk.
    Weights that stay as they were, such as those of a frozen backbone, depend on no record and are not recorded. Call
    `add` before the weights are saved; a line torn by a crash matches nothing.
    """

    def __init__(self, ledger: Path, before: Iterable[str]) -> None:
        self.path = _beside(ledger)
        self._before, self._newest = frozenset(before), frozenset[str]()

    def add(self, tensors: Mapping[str, Any]) -> None:
        """Record the hashes of these tensors; values that are not tensors are skipped."""
        hashes = frozenset(hashes_of(tensors).values()) - self._before
        new = sorted(hashes - self._newest)
        if new:
            with self.path.open("ab") as file:
                # Starts on a new line, in case the last one was torn.
                file.write("".join(f"\n{value}" for value in new).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._newest = hashes


def hashes_of(tensors: Mapping[str, Any]) -> dict[str, str]:
    """A hash of the values of each floating-point tensor, whatever its name and shape; none for constant tensors.

    Values are hashed in float32, so a copy in float64, or one converted back to float32, has the same hash.
    """
    found = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:  # nothing trains sparse ones
            continue
        if tensor.is_floating_point() and tensor.numel() >= FEWEST_ELEMENTS:
            values = tensor.detach().to("cpu", torch.float32).reshape(-1).contiguous()
            if not _is_constant(values[:64]) or not _is_constant(values):  # the first few usually tell
                found[name] = hashlib.blake2b(values.numpy().data, digest_size=16).hexdigest()
    return found


def released_by(weights: Mapping[str, str], folder: Path, *, besides: Collection[str]) -> dict[Path, str]:
    """The ledgers of runs that have released one of these hashes (name → hash), each with a name.

    Hashes that a run in `besides` has released, too, do not count: two runs with the same seed release the same
    weights. Searched are the runs with a ledger in the folder and those whose weights have been in this process.
    """
    names = {value: name for name, value in weights.items()}
    files = {*folder.resolve().glob(f"*{SUFFIX}"), *RUNS_IN_THIS_PROCESS}
    common = {path: _common(path, names) for path in sorted(files)}
    known = set[str]().union(*(found for path, found in common.items() if path.stem in besides))
    others = {path: found - known for path, found in common.items() if path.stem not in besides}
    return {path.with_suffix(".ledger"): min(map(names.__getitem__, found)) for path, found in others.items() if found}


def note_here(ledger: str | Path | None) -> None:
    """Weights of the run with this ledger are in this process now."""
    if ledger is not None:
        RUNS_IN_THIS_PROCESS.add(_beside(Path(ledger)))


def _common(path: Path, hashes: Collection[str]) -> set[str]:
    if not path.exists():
        return set()
    with path.open(encoding="ascii", errors="replace") as lines:
        return {line for line in map(str.strip, lines) if line in hashes}


def _is_constant(values: Tensor) -> bool:
    return bool((values == values[0]).all())


def _beside(ledger: Path) -> Path:
    return ledger.resolve().with_suffix(SUFFIX)
