"""What the processes of a run add up or gather, and the integers in which they add up what is released."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_gep.privacy.release import Part, Release

RESERVE = 10.0
"""Standard deviations by which batch size and noise may exceed what is expected before a sum wraps around."""
LARGEST_LOSS = 0.01
"""The most by which thresholds may be lowered for 32-bit integers; beyond it, 64 bits are sent."""


class Exchange:
    """The exchange of a run with one process, which has everything."""

    rank, world_size = 0, 1

    def share(self, count: int) -> tuple[int, int]:
        """Where the records of this process among `count` begin and end; shares differ by at most one record."""
        first, end = (count * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return first, end

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over the processes."""
        return tensor

    def largest(self, value: float) -> float:
        """The largest of the processes' numbers."""
        return value

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in the order of their shares."""
        return rows

    def thresholds(self, release: Release, sizes: tuple[int, int], expected_batch_size: int) -> Release:
        """The release with thresholds lowered by what `total` may add to a record's contribution."""
        return release

    def total(self, noisy: Tensor, part: Part, expected_batch_size: int) -> Tensor:
        """The sum over processes of a part of the release, which one of them has perturbed."""
        return noisy


@dataclass(frozen=True)
class FixedPoint:
    """Multiples of a public unit in the place of a float64 sum: exact to add in any order, in 4 bytes instead of 8.

    Guarantee: where a record moves the sum of one process by Δ, the integers move by at most ‖Δ‖ + √size·unit, as each
    entry is rounded by at most half a unit before and after. Thresholds are lowered by that `loss`. The noise is part
    of one process' sum when it is rounded, and adding integers to a rounded number is rounding the sum, so the total
    is a rounded Gaussian mechanism. Integers that wrap around are the total modulo 2³²: post-processing, too.
    """

    unit: float
    dtype: torch.dtype
    loss: float
    """√size·unit, as a share of the threshold."""

    @classmethod
    def of(cls, part: Part, size: int, expected_batch_size: int) -> "FixedPoint":
        """The finest unit in which no sum wraps around, in as few bits as lower the threshold little."""
        records = expected_batch_size + RESERVE * (1 + math.sqrt(expected_batch_size))
        most = records + RESERVE * part.sigma
        short, long = (cls(part.clip * most / 2**b, kind, math.sqrt(size) * most / 2**b) for b, kind in INTEGERS)
        return short if short.loss <= LARGEST_LOSS else long

    def encode(self, values: Tensor) -> Tensor:
        """The integers of float64 values."""
        return torch.round(values / self.unit).long().to(self.dtype)

    def decode(self, integers: Tensor) -> Tensor:
        """The float64 values of integers."""
        return integers.double() * self.unit


INTEGERS = ((31, torch.int32), (62, torch.int64))


def lowered(release: Release, codes: tuple[FixedPoint | None, FixedPoint | None]) -> Release:
    """The release with thresholds lowered, so that contributions are within those of `release` after rounding.

    With joint clipping (w/S₁, r/S₂) has norm 1 − loss before and is moved by at most (loss₁, loss₂), so both
    thresholds are lowered by the norm of that.
    """
    loss = math.hypot(*(0.0 if code is None else code.loss for code in codes))

    def lower(part: Part | None) -> Part | None:
        return None if part is None else replace(part, clip=part.clip * (1 - loss))

    return replace(release, embedding=lower(release.embedding), residual=lower(release.residual))
