"""Weights that private runs have released, as hashes beside their ledgers: copies of them are recognised."""

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_gep.privacy.ledger import read_or_none

FEWEST_ELEMENTS = 4
"""Of a tensor that is recognised: smaller ones may be equal by chance."""
SUFFIX = ".weights"
_OF_RUNS_HERE: set[Path] = set()
"""Files of the runs whose weights have been in this process, whichever folders they are in."""


class ReleasedBy(NamedTuple):
    """A run that has released a tensor of the given name."""

    run_id: str
    ledger: Path
    name: str

    @property
    def steps(self) -> int | None:
        """How many it has made; None if its ledger is gone."""
        content = read_or_none(self.ledger)
        return None if content is None else content.count


class ReleasedWeights:
    """What one fit releases: an append-only file with a hash on each line.

    Guarantee: when `add` returns, hashes of all tensors that differ from those the fit began with are on disk. The
    latter are not written down: weights that stay as they were, such as those of a frozen backbone, know no record. A
    line that a kill has torn matches nothing; call `add` before the weights are saved.
    """

    def __init__(self, ledger: Path, before: Iterable[str]) -> None:
        self.path = _beside(ledger)
        self._before, self._newest = frozenset(before), frozenset[str]()

    def add(self, tensors: Mapping[str, Any]) -> None:
        """Write down hashes of these tensors; whatever else is among the values has none."""
        hashes = frozenset(hashes_of(tensors).values()) - self._before
        new = sorted(hashes - self._newest)
        if new:
            with self.path.open("ab") as file:
                # Not after what is left of a torn line.
                file.write("".join(f"\n{value}" for value in new).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._newest = hashes


def hashes_of(tensors: Mapping[str, Any]) -> dict[str, str]:
    """A hash of the numbers of each floating-point tensor, whatever its name and shape; of constant ones none.

    Numbers are taken in float32, so that a copy in float64, or one back in float32, has the same.
    """
    found = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel() >= FEWEST_ELEMENTS:
            numbers = tensor.detach().to("cpu", torch.float32).reshape(-1).contiguous()
            if not _is_constant(numbers[:64]) or not _is_constant(numbers):  # the first few tell mostly
                found[name] = hashlib.blake2b(numbers.numpy().data, digest_size=16).hexdigest()
    return found


def released_by(weights: Mapping[str, str], folder: Path, *, besides: Collection[str]) -> list[ReleasedBy]:
    """The runs that have released one of these hashes (name → hash), if none with an id of `besides` has released it.

    Looked for are those with a ledger in the folder, and those whose weights have been in this process.
    """
    files = sorted({*folder.resolve().glob(f"*{SUFFIX}"), *_OF_RUNS_HERE})
    names = {value: name for name, value in weights.items()}
    for path in files:
        if path.stem in besides:  # first: two runs that follow one seed release the same weights
            names = {value: names[value] for value in names.keys() - _common(path, names)}
    found = ((path, _common(path, names)) for path in files if path.stem not in besides)
    return [
        ReleasedBy(path.stem, path.with_suffix(".ledger"), min(names[value] for value in common))
        for path, common in found
        if common
    ]


def _common(path: Path, hashes: Collection[str]) -> set[str]:
    if not path.exists():
        return set()
    with path.open(encoding="ascii", errors="replace") as lines:
        return {line for line in map(str.strip, lines) if line in hashes}


def note_here(ledger: str | Path | None) -> None:
    """Weights of the run with this ledger are in this process now."""
    if ledger is not None:
        _OF_RUNS_HERE.add(_beside(Path(ledger)))


def _is_constant(numbers: Tensor) -> bool:
    return bool((numbers == numbers[0]).all())


def _beside(ledger: Path) -> Path:
    return ledger.resolve().with_suffix(SUFFIX)
