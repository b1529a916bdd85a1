"""The exchange between processes by tensor collectives on their devices, counted in bytes, and the basis they share."""

import warnings
from collections import Counter
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, distributed
from typing_extensions import override

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.exchange import Exchange, decode, encode
from lightning_gep.algorithm.subspace import Anchors, Subspace
from lightning_gep.privacy.fixed_point import code_for, lowered
from lightning_gep.privacy.release import Part, Release
from lightning_gep.strategy.processes import Processes, in_contact


class Collectives(Exchange):
    """Adds up and gathers by torch.distributed."""

    def __init__(self, processes: Processes, device: torch.device) -> None:
        self.rank, self.world_size, self._device = processes.rank, processes.world_size, device
        self.sent: Counter[str] = Counter()
        """Bytes of the tensors that were added up, and of all rows that were gathered, by what they were for."""

    @override
    def sum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, "basis")

    @override
    def largest(self, value: float) -> float:
        number = torch.tensor(value, dtype=torch.float64, device=self._device)
        return float(self._reduced(number, "basis", distributed.ReduceOp.MAX))

    @override
    def gather(self, rows: Tensor) -> Tensor:
        counts = torch.zeros(self.world_size, dtype=torch.int64, device=self._device)
        counts[self.rank] = len(rows)
        lengths = self._reduced(counts, "basis").tolist()
        # Collectives take tensors of one size.
        padded = torch.cat([rows, rows.new_zeros(max(lengths) - len(rows), rows.shape[1])])
        found = [torch.empty_like(padded) for _ in lengths]
        self.sent["basis"] += sum(lengths) * rows.shape[1] * rows.element_size()
        with in_contact(self.rank):
            distributed.all_gather(found, padded)
        return torch.cat([part[:length] for part, length in zip(found, lengths, strict=True)])

    @override
    def thresholds(self, release: Release, sizes: tuple[int, int], expected_batch_size: int) -> Release:
        embedding, residual = (
            None if part is None else code_for(part, size, expected_batch_size)
            for part, size in zip((release.embedding, release.residual), sizes, strict=True)
        )
        return lowered(release, (embedding, residual))

    @override
    def total(self, noisy: Tensor, part: Part, expected_batch_size: int) -> Tensor:
        code = code_for(part, len(noisy), expected_batch_size)
        if code is None:
            return self._reduced(noisy, "gradient")
        return decode(code, self._reduced(encode(code, noisy), "gradient"))

    def same(self, number: Tensor) -> bool:
        """Whether all processes have this integer."""
        both = self._reduced(torch.stack([number, -number]), "basis", distributed.ReduceOp.MAX).tolist()
        return both[0] == -both[1]

    def _reduced(self, tensor: Tensor, purpose: str, by: Any = distributed.ReduceOp.SUM) -> Tensor:
        tensor = tensor.contiguous()
        self.sent[purpose] += tensor.numel() * tensor.element_size()
        with in_contact(self.rank):
            distributed.all_reduce(tensor, by)
        return tensor


class SharedBasis:
    """A `Subspace` of which every process has the same copy.

    Embeddings are summed over processes, so all must use exactly the same basis. Each computes it from the same sums
    by the same operations. On unequal hardware they can round differently: checksums are compared at every refresh,
    and where they differ, all continue with the basis of the first process.
    """

    def __init__(self, subspace: Subspace, processes: Processes, exchange: Exchange, device: torch.device) -> None:
        self.subspace, self._processes, self._exchange, self._device = subspace, processes, exchange, device
        self._warned = False
        subspace.exchange = exchange

    @property
    def is_new(self) -> bool:
        """Whether there is no basis yet."""
        return self.subspace.basis is None

    def at_step(self, step: int, anchors: Anchors) -> Basis:
        """The basis for `step`."""
        before = self.subspace.basis
        if self.subspace.at_step(step, anchors) is not before:
            self._compare()
        return self.current

    def _compare(self) -> None:
        exchange = self._exchange
        if not isinstance(exchange, Collectives) or exchange.same(checksum(self.subspace.state_dict())):
            return
        if not self._warned:
            rank_zero_warn(
                "The processes have computed different bases from the same numbers, as unequal hardware, versions or "
                "numbers of threads do. All continue with that of the first process."
            )
        self._warned = True
        state = self._processes.broadcast(move_data_to_device(self.subspace.state_dict(), torch.device("cpu")))
        self.subspace.load_state_dict(move_data_to_device(state, self._device))

    @property
    def current(self) -> Basis:
        """The basis of the last step."""
        return self.subspace.current

    def state_dict(self) -> dict[str, Any] | None:
        """The state for a checkpoint; None before the first step."""
        return None if self.is_new else self.subspace.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from a checkpoint. A basis of other groups or another subspace is replaced: it is public."""
        if state is None:
            return
        if self.subspace.fits(state):
            self.subspace.load_state_dict(move_data_to_device(state, self._device))
        else:
            warnings.warn(
                "The basis in the checkpoint belongs to other parameter groups or another subspace, so a new one is "
                "computed. Use the groups and subspace of the earlier run to keep it.",
                stacklevel=2,
            )


def checksum(value: Any) -> Tensor:
    """An integer that changes with any number in a state, on the device of its tensors."""
    if isinstance(value, Tensor):
        return value.contiguous().view(torch.int64 if value.element_size() == 8 else torch.int32).sum()
    if isinstance(value, float):
        return checksum(torch.tensor(value, dtype=torch.float64))
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    sums = [checksum(part) for part in parts]
    device = next((part.device for part in sums if part.device.type != "cpu"), None)
    return sum((part.to(device) for part in sums), torch.zeros((), dtype=torch.int64, device=device))
