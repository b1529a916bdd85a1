"""One basis for all processes: the first one computes it, the others receive it."""

import warnings
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.subspace import Anchors, Subspace

T = TypeVar("T")


class Processes(Protocol):
    """What this module needs to know of the other processes."""

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first process."""

    @property
    def world_size(self) -> int:
        """How many there are."""

    def broadcast(self, obj: T, src: int = 0) -> T:
        """The first process' object, in every process."""


class SharedBasis:
    """A `Subspace` in the first process, whose basis every process uses.

    Embeddings are summed over processes, so all must use exactly the same basis; computing it in each of them would
    agree only as far as their hardware and random numbers do.
    """

    def __init__(self, subspace: Subspace, processes: Processes, device: torch.device) -> None:
        self.subspace, self._processes, self._device = subspace, processes, device
        self._shared: Basis | None = None

    @property
    def is_new(self) -> bool:
        """Whether there is no basis yet."""
        return self.subspace.basis is None

    def at_step(self, step: int, anchors: Anchors) -> Basis:
        """The basis for `step`."""
        if self._processes.world_size == 1:
            return self.subspace.at_step(step, anchors)
        basis = self.subspace.at_step(step, anchors) if self._processes.is_global_zero else self._shared
        if self._processes.broadcast(basis is not self._shared):
            received = self._processes.broadcast(None if basis is None else _on(basis, torch.device("cpu")))
            assert received is not None, "the first process always has a basis"
            self._shared = basis if self._processes.is_global_zero else _on(received, self._device)
        assert self._shared is not None
        return self._shared

    @property
    def current(self) -> Basis:
        """The basis of the last step."""
        return self.subspace.current if self._shared is None else self._shared

    def state_dict(self) -> dict[str, Any] | None:
        """What a checkpoint keeps: the first process' state; nothing in the others, or before the first step."""
        return None if self.is_new else self.subspace.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from a checkpoint. What does not fit other groups or another subspace begins anew: it is public."""
        if state is None:
            return
        if self.subspace.fits(state):
            self.subspace.load_state_dict({name: self._here(value) for name, value in state.items()})
        else:
            warnings.warn(
                "The basis in the checkpoint has other parameter groups, or is of another subspace: a new one begins. "
                "Give the groups and the subspace of the run before to keep it.",
                stacklevel=2,
            )

    def _here(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._here(item) for item in value]
        return value.to(self._device) if isinstance(value, torch.Tensor) else value


def _on(basis: Basis, device: torch.device) -> Basis:
    return replace(basis, blocks=tuple(block.to(device) for block in basis.blocks))
