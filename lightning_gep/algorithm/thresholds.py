"""Thresholds and basis size from public data: what fits one model drowns the signal of another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from lightning_gep.algorithm.basis import Basis, full_precision
from lightning_gep.algorithm.clipping import residual_norm_bound
from lightning_gep.algorithm.groups import allocate
from lightning_gep.algorithm.linalg import orthonormalise, row_norms
from lightning_gep.algorithm.subspace import Anchors, Subspace, finite_rows
from lightning_gep.algorithm.tracked import TrackedSubspace

LARGEST_CLIP, SHARE_OF_NORM = 1.0, 0.5
"""The embedding's threshold: 1, or half the median norm if that is less. Where nearly every record is clipped, the
scale of both thresholds only trades with the learning rate, and at 1 learning rates mean the same from model to model;
their ratio is what has to fit."""
LEAST_RATIO = 0.5
"""The residual's threshold is at least this share of the embedding's. Where training starts, a basis holds nearly all
of a gradient; later it holds less, and residuals that are clipped much harder than embeddings turn the sum towards the
subspace. On CIFAR-10 a ratio of 0.18, right at the start, cost six points (docs/thresholds.md)."""
CANDIDATES = (25, 50, 100, 200, 350, 500)
LARGEST_BASIS = 2**27
"""Numbers in a basis whose size is chosen: half a gigabyte in float32."""
HELD = 2**26
"""Numbers in gradients of anchors that are held for their principal components, which takes half the time."""


@dataclass(frozen=True)
class Thresholds:
    """What was chosen on public data."""

    k: int
    clip_embedding: float
    clip_residual: float
    clip_norm: float = 1.0


def choose_thresholds(
    fit: Anchors, held_out: Anchors, sizes: Sequence[int], *, k: int | None, num_anchors: int
) -> Thresholds:
    """k (if not given) and both thresholds from the norms of anchors that the basis was not fitted on.

    With the optimal split the noise of a step has energy σ²(S₁√k + S₂√p)². A larger k costs more noise inside the
    subspace and leaves smaller residuals outside; k is the candidate with the least total. On the anchors that the
    basis was fitted on the residuals would be too small, so others are used, a microbatch at a time. The thresholds
    have the ratio of the median norms, but the residual's is at least half of the embedding's.
    """
    p = sum(sizes)
    largest = k or largest_choice(sizes, num_anchors)
    options = [largest] if k else [*(c for c in CANDIDATES if c < largest), largest]
    basis = _principal_basis(fit, sizes, allocate(largest, sizes), num_anchors)
    norms: list[list[tuple[Tensor, Tensor]]] = [[] for _ in options]
    for gradients in held_out():
        lengths, embeddings = row_norms(gradients), basis.embed(gradients).split(basis.dimensions, dim=1)
        for option, found in zip(options, norms, strict=True):
            quotas = allocate(option, sizes)  # the first rows of each block are the basis of a smaller k
            inside = torch.cat([part[:, :quota] for part, quota in zip(embeddings, quotas, strict=True)], dim=1)
            found.append((row_norms(inside), residual_norm_bound(lengths, row_norms(inside), basis)))
    medians = [[_median(torch.cat(part)) for part in zip(*found, strict=True)] for found in norms]
    noise = [e * math.sqrt(option) + r * math.sqrt(p) for option, (e, r) in zip(options, medians, strict=True)]
    best = noise.index(min(noise))
    chosen, (embedding, residual) = options[best], medians[best]
    clip = min(LARGEST_CLIP, SHARE_OF_NORM * embedding)
    ratio = max(LEAST_RATIO, residual / embedding)
    return Thresholds(chosen, _two_digits(clip), _two_digits(ratio * clip))


class HeldSubspace(Subspace):
    """The principal components of anchors that are few enough to be held together."""

    @override
    def _refresh(self, step: int, anchors: Anchors) -> Basis | None:
        held = list(anchors())
        if not held:
            return None
        with full_precision(held[0].device):
            parts = finite_rows(torch.cat(held)).split(self.sizes, dim=1)
            return Basis.joined([orthonormalise(part, quota) for part, quota in zip(parts, self.quotas, strict=True)])


def _principal_basis(fit: Anchors, sizes: Sequence[int], quotas: Sequence[int], num_anchors: int) -> Basis:
    """The directions of most energy first, so that the first rows are the basis of a smaller k."""
    if num_anchors * sum(sizes) <= HELD:
        return HeldSubspace(sizes, quotas).at_step(0, fit)
    subspace = TrackedSubspace(sizes, quotas, num_anchors=num_anchors, decay=0.0)
    subspace.at_step(0, fit)
    return subspace.principal_basis()


def largest_choice(sizes: Sequence[int], num_anchors: int) -> int:
    """The largest k that is tried: no more than anchors or half the parameters, and a basis that fits into memory."""
    most = max(1, min(num_anchors, sum(sizes) // 2))
    affordable = (c for c in CANDIDATES if c <= most and basis_numbers(c, sizes) <= LARGEST_BASIS)
    return max(affordable, default=min(most, CANDIDATES[0]))


def limited_by_memory(k: int, sizes: Sequence[int]) -> bool:
    """Whether a chosen k is the largest whose basis fits into memory."""
    return k < CANDIDATES[-1] and k == largest_choice(sizes, CANDIDATES[-1]) and k < sum(sizes) // 2


def basis_numbers(k: int, sizes: Sequence[int]) -> int:
    """How many numbers a basis of k vectors has: Σ kᵢpᵢ."""
    return sum(quota * size for quota, size in zip(allocate(k, sizes), sizes, strict=True))


def choose_clip_norm(norms: Tensor) -> float:
    """The one threshold of DP-SGD, by the rule for embeddings."""
    return _two_digits(min(LARGEST_CLIP, SHARE_OF_NORM * _median(norms)))


def _median(norms: Tensor) -> float:
    usable = norms[torch.isfinite(norms) & (norms > 0)]
    return float(usable.median()) if len(usable) else 1.0


def _two_digits(value: float) -> float:
    """A threshold is a choice, not a measurement."""
    return float(f"{value:.2g}")
