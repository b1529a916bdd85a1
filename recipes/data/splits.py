"""Which records go where: drawn by a seed alone, so that no record decides about another."""

import numpy as np


def drawn_rows(count: int, size: int, seed: int) -> list[int]:
    """`size` of `count` rows, in order. For the same seed a smaller draw is part of a larger one."""
    return sorted(np.random.default_rng(seed).permutation(count)[:size].tolist())


def other_rows(count: int, taken: list[int]) -> list[int]:
    """The rows that were not taken, in order."""
    without = set(taken)
    return [row for row in range(count) if row not in without]
