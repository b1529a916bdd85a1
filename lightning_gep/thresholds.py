"""Thresholds and basis size from public data: what fits one model drowns the signal of another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_gep.basis import Basis
from lightning_gep.clipping import residual_norm_bound, row_norms
from lightning_gep.groups import allocate
from lightning_gep.subspace import Anchors
from lightning_gep.tracking import TrackedSubspace

SHARE_OF_NORM = 0.5
"""Thresholds are this share of the median norm: noise grows with them, and directions matter more than sizes."""
CANDIDATES = (25, 50, 100, 200, 350, 500, 750, 1000, 1500, 2000)


@dataclass(frozen=True)
class Thresholds:
    """What was chosen on public data."""

    k: int
    clip_embedding: float
    clip_residual: float


def choose_thresholds(
    fit: Anchors, held_out: Tensor, sizes: Sequence[int], *, k: int | None, num_anchors: int
) -> Thresholds:
    """k (if not given) and both thresholds from the norms of anchors that the basis was not fitted on.

    With the optimal split the noise of a step has energy σ²(S₁√k + S₂√p)². A larger k costs more noise inside the
    subspace and leaves smaller residuals outside; k is the candidate with the least total. On the anchors that the
    basis was fitted on the residuals would be too small, so others are used.
    """
    p = sum(sizes)
    largest = k or max(
        [c for c in CANDIDATES if c <= min(num_anchors, p // 2)], default=max(1, min(num_anchors, p // 2))
    )
    options = [largest] if k else [*(c for c in CANDIDATES if c < largest), largest]
    subspace = TrackedSubspace(sizes, allocate(largest, sizes), num_anchors=num_anchors, decay=0.0)
    basis = subspace.at_step(0, fit)
    gradient_norms = row_norms(held_out)
    choices = []
    for option in options:
        smaller = Basis(
            tuple(block[:quota] for block, quota in zip(basis.blocks, allocate(option, sizes), strict=True)),
            basis.defect,
        )
        embedding_norms = row_norms(smaller.embed(held_out))
        residual_norms = residual_norm_bound(gradient_norms, embedding_norms, smaller)
        choices.append(Thresholds(option, _threshold(embedding_norms), _threshold(residual_norms)))
    return min(choices, key=lambda c: c.clip_embedding * math.sqrt(c.k) + c.clip_residual * math.sqrt(p))


def _threshold(norms: Tensor) -> float:
    finite = norms[torch.isfinite(norms) & (norms > 0)]
    value = SHARE_OF_NORM * float(finite.median()) if len(finite) else 1.0
    # Two digits: a threshold is a choice, not a measurement.
    return float(f"{value:.2g}") or value
