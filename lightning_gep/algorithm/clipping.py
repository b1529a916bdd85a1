"""Clip factors whose bound holds in floating point: no contribution is longer than its threshold."""

import math

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis
from lightning_gep.privacy.release import Release

MARGIN = 1e-4
"""Rows are clipped to S·(1−MARGIN). The margin covers rounding of the factors and of the float64 sums. It also covers
float32 matrix products that round a row differently depending on the rows beside it: with products of one size, as used
here, that was never seen; with varying sizes, adding a record moved the others' sum by 1e-5 of the threshold."""


def residual_norm_bound(gradient_norms: Tensor, embedding_norms: Tensor, basis: Basis) -> Tensor:
    """ρ, never below ‖g − ŵB‖, without forming the residual.

    With ŵ = gBᵀ + e the computed embedding, ‖g − ŵB‖² = ‖g‖² − ‖ŵ‖² + 2ŵ·e + ŵ(BBᵀ−I)ŵᵀ exactly, so ρ² = max(0, ‖g‖² −
    ‖ŵ‖²) + 2‖ŵ‖‖e‖ + τ‖ŵ‖² bounds it, with τ = `basis.defect`, ‖e‖ ≤ `basis.embedding_error`, and a last term for the
    float64 norms themselves. The difference of squares alone cancels: with BBᵀ−I at 1e-5 it let residuals through that
    were ten times the threshold.
    """
    if basis.dimension == 0:
        return gradient_norms * (1 + _norm_rounding(basis))
    # In units of ‖g‖, so that no square overflows or underflows.
    scale = torch.where(gradient_norms > 0, gradient_norms, torch.ones_like(gradient_norms))
    embedded = embedding_norms / scale
    error = basis.embedding_error(gradient_norms) / scale
    squared = (1 - embedded**2).clamp(min=0) + 2 * embedded * error + basis.defect * embedded**2
    squared = squared + 4 * _norm_rounding(basis) * (1 + embedded**2)
    return gradient_norms * squared.sqrt()


def clip_factors(embedding_norms: Tensor, residual_norms: Tensor, release: Release) -> tuple[Tensor, Tensor]:
    """The factors (at most 1) of each record's embedding and residual, in float64.

    The norms run over all groups together. Separate clipping: min(1, S/‖·‖) for each part on its own. Joint clipping:
    one factor that brings the norm of (w/S₁, r/S₂) to at most 1. An infinite threshold clips nothing.
    """
    embedding_clip = release.embedding.clip if release.embedding else math.inf
    residual_clip = release.residual.clip if release.residual else math.inf
    if release.clipping == "joint":
        norms = torch.hypot(embedding_norms / embedding_clip, residual_norms / residual_clip)
        factors = _factors(norms, 1.0)
        return factors, factors
    return _factors(embedding_norms, embedding_clip), _factors(residual_norms, residual_clip)


def _factors(norms: Tensor, threshold: float) -> Tensor:
    return (threshold * (1 - MARGIN) / norms).clamp(max=1.0)


def _norm_rounding(basis: Basis) -> float:
    return (basis.num_parameters + basis.dimension) * torch.finfo(torch.float64).eps
