"""Norms, stable ranks and projection errors of a batch of gradients, from their Gram matrix.

G has a gradient in each row (n × p), W their embeddings on an orthonormal basis B (n × k). The residuals R = G − WB
have RRᵀ = GGᵀ − WWᵀ, so GGᵀ and W give the norms of all residuals and of their sums: residuals are never formed, and G
is not needed once GGᵀ is computed. All of it is a function of private data without noise: no ε covers it.
"""

from typing import Any

import torch
from torch import Tensor

from lightning_gep.algorithm.clipping import clip_factors
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.linalg import gram
from lightning_gep.privacy.release import Part, Release

WHOLE = "all"
"""The name of all groups together."""
ByGroup = dict[str, Tensor]


def products_of(gradients: Tensor, groups: ParameterGroups) -> ByGroup:
    """GGᵀ of each group in float64."""
    parts = gradients.split(groups.sizes, dim=1)
    return {name: gram(part) for name, part in zip(groups.names, parts, strict=True)}


def of_gradients(products: ByGroup, clip_norm: float) -> dict[str, Any]:
    """Stable ranks and norms of the gradients; `clip_norm` is the threshold S of GP."""
    products = _with_whole(products)
    norms = _norms(products[WHOLE])
    _, factors = clip_factors(torch.zeros_like(norms), norms, Release(None, Part(clip_norm, 0.0)))
    return {
        "stable_rank": {name: stable_rank(part) for name, part in products.items()},
        "norm_of_mean": {name: norm_of_mean(part) for name, part in products.items()},
        "norm_of_clipped_mean": norm_of_mean(products[WHOLE], factors),
        "norm_of_a_record": float(norms.mean()),
        "clipped_records": _clipped(factors),
    }


def of_projection(products: ByGroup, embeddings: ByGroup, release: Release) -> dict[str, Any]:
    """How much of the gradients a basis misses, and the norms that GEP would release before noise.

    `embeddings` has W of each group. The release's thresholds are used, its noise is not.
    """
    residuals = _with_whole({name: part - embeddings[name] @ embeddings[name].T for name, part in products.items()})
    products, whole = _with_whole(products), torch.cat(list(embeddings.values()), dim=1)
    factors = clip_factors(torch.linalg.vector_norm(whole, dim=1), _norms(residuals[WHOLE]), release)
    return {
        "vectors": whole.shape[1],
        "error_of_mean": {
            name: _ratio(norm_of_mean(residuals[name]), norm_of_mean(products[name])) for name in products
        },
        "error_of_a_record": {name: _mean_ratio(residuals[name], products[name]) for name in products},
        "stable_rank_of_residuals": {name: stable_rank(part) for name, part in residuals.items()},
        "norm_of_clipped_embedding": float(torch.linalg.vector_norm(factors[0] @ whole)) / len(whole),
        "norm_of_clipped_residual": norm_of_mean(residuals[WHOLE], factors[1]),
        "clipped_embeddings": _clipped(factors[0]),
        "clipped_residuals": _clipped(factors[1]),
    }


def stable_rank(products: Tensor) -> float:
    """‖G‖_F²/‖G‖₂² from GGᵀ; 0 for a zero matrix."""
    energies = torch.linalg.eigvalsh(products)
    return _ratio(float(energies.sum()), float(energies[-1]))


def norm_of_mean(products: Tensor, factors: Tensor | None = None) -> float:
    """‖Σcᵢgᵢ‖/n, from GGᵀ, with all factors 1 unless they are given."""
    factors = torch.ones(len(products), dtype=products.dtype) if factors is None else factors
    # Rounding may give a small negative value where the rows cancel.
    return max(0.0, float(factors @ products @ factors)) ** 0.5 / len(products)


def _with_whole(products: ByGroup) -> ByGroup:
    """The groups, and all parameters together: products of whole rows are sums over the groups."""
    return {**products, WHOLE: torch.stack(list(products.values())).sum(dim=0)}


def _norms(products: Tensor) -> Tensor:
    return products.diagonal().clamp(min=0).sqrt()


def _mean_ratio(residuals: Tensor, products: Tensor) -> float:
    """The mean of ‖rᵢ‖/‖gᵢ‖ over the records whose gradient is not zero."""
    norms = _norms(products)
    return float((_norms(residuals) / norms)[norms > 0].mean()) if bool((norms > 0).any()) else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _clipped(factors: Tensor) -> float:
    return float((factors < 1).double().mean())
