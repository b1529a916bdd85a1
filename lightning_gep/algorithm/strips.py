"""Wide matrices in float64, a strip of columns at a time."""

from collections.abc import Iterator

import torch
from torch import Tensor

COLUMNS = 4096
"""Width of a strip."""


def strips_in_float64(*parts: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Which columns, and those columns of all `parts`, one below the other: a copy that is gone at the next strip.

    All strips use the same memory. New memory for each was seen to be placed beside the old, not in it, until a second
    matrix of the same size in float64 was there (the allocator's aligned blocks do not fit the gaps they leave).
    """
    height, width = sum(len(part) for part in parts), parts[0].shape[1]
    memory = parts[0].new_empty(height * min(COLUMNS, width), dtype=torch.float64)
    for start in range(0, width, COLUMNS):
        columns = slice(start, min(start + COLUMNS, width))
        strip = memory[: height * (columns.stop - start)].view(height, columns.stop - start)
        top = 0
        for part in parts:
            strip[top : top + len(part)] = part[:, columns]
            top += len(part)
        yield columns, strip
