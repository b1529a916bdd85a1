"""What the processes of a run add up or gather; with one process, nothing."""

import torch
from torch import Tensor

from lightning_gep.privacy.fixed_point import FixedPoint
from lightning_gep.privacy.release import Part, Release


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


def encode(code: FixedPoint, values: Tensor) -> Tensor:
    """Float64 values as integers of the code's unit."""
    return torch.round(values / code.unit).long().to(torch.int32 if code.bytes == 4 else torch.int64)


def decode(code: FixedPoint, integers: Tensor) -> Tensor:
    """The float64 values of such integers."""
    return integers.double() * code.unit
