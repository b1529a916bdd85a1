"""The integers in which several processes add up what is released."""

import math
from dataclasses import dataclass, replace

from lightning_gep.privacy.release import Part, Release

RESERVE = 10.0
"""Standard deviations by which batch size and noise may exceed what is expected before a sum wraps around."""
LARGEST_LOSS = 0.01
"""The most by which thresholds may be lowered for 32-bit integers; beyond it, 64 bits are sent."""


@dataclass(frozen=True)
class FixedPoint:
    """Multiples of a public unit in the place of a float64 sum: exact to add in any order, in 4 bytes instead of 8.

    Guarantee: where a record moves the sum of one process by Δ, the integers move by at most ‖Δ‖ + √size·unit, as each
    entry is rounded by at most half a unit before and after. Thresholds are lowered by that `loss`. The noise is part
    of one process' sum when it is rounded, and adding integers to a rounded number is rounding the sum, so the total
    is a rounded Gaussian mechanism. Integers that wrap around are the total modulo 2³²: post-processing, too.
    """

    unit: float
    bytes: int
    loss: float
    """√size·unit, as a share of the threshold."""

    @classmethod
    def of(cls, part: Part, size: int, expected_batch_size: int) -> "FixedPoint":
        """The finest unit in which no sum wraps around, in as few bits as lower the threshold little."""
        records = expected_batch_size + RESERVE * (1 + math.sqrt(expected_batch_size))
        most = records + RESERVE * part.sigma
        short, long = (
            cls(part.clip * most / 2**bits, width, math.sqrt(size) * most / 2**bits)
            for width, bits in ((4, 31), (8, 62))
        )
        return short if short.loss <= LARGEST_LOSS else long


def code_for(part: Part, size: int, expected_batch_size: int) -> FixedPoint | None:
    """The integers in which a part is added up; None without noise, where every bit counts and none is secret."""
    return FixedPoint.of(part, size, expected_batch_size) if part.noise_std and size else None


def released_bytes(release: Release, sizes: tuple[int, int], expected_batch_size: int) -> int:
    """What each process adds to the sums of a step: the embedding's k numbers and the residual's p."""
    parts = [(part, size) for part, size in zip((release.embedding, release.residual), sizes, strict=True) if part]
    codes = [code_for(part, size, expected_batch_size) for part, size in parts]
    return sum(size * (code.bytes if code else 8) for code, (_, size) in zip(codes, parts, strict=True))


def lowered(release: Release, codes: tuple[FixedPoint | None, FixedPoint | None]) -> Release:
    """The release with thresholds lowered, so that contributions are within those of `release` after rounding.

    With joint clipping (w/S₁, r/S₂) has norm 1 − loss before and is moved by at most (loss₁, loss₂), so both
    thresholds are lowered by the norm of that.
    """
    loss = math.hypot(*(0.0 if code is None else code.loss for code in codes))

    def lower(part: Part | None) -> Part | None:
        return None if part is None else replace(part, clip=part.clip * (1 - loss))

    return replace(release, embedding=lower(release.embedding), residual=lower(release.residual))
