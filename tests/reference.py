"""The mechanism in the plainest way: a Python loop over records, everything held, everything in float64."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Reference:
    embeddings: list[Tensor]
    residuals: list[Tensor]
    embedding_factors: list[float]
    residual_factors: list[float]
    embedding_sum: Tensor
    residual_sum: Tensor


def dense(blocks: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """The block-diagonal k × p matrix of a grouped basis."""
    return torch.block_diag(*[block.double() for block in blocks])


def release_parts(gradients: Tensor, basis: Tensor, s1: float, s2: float, clipping: str = "separate") -> Reference:
    """Embedding and residual of every record, their clip factors, and the clipped sums."""
    k, p = basis.shape
    out = Reference([], [], [], [], torch.zeros(k, dtype=torch.float64), torch.zeros(p, dtype=torch.float64))
    for record in gradients.double():
        if not torch.isfinite(record).all():
            record = torch.zeros(p, dtype=torch.float64)
        embedding = torch.stack([(record * row).sum() for row in basis]) if k else torch.zeros(0, dtype=torch.float64)
        residual = record.clone()
        for coordinate, row in zip(embedding, basis, strict=True):
            residual = residual - coordinate * row
        first, second = float(embedding.norm()), float(residual.norm())
        if clipping == "joint":
            together = math.hypot(first / s1, second / s2)
            c1 = c2 = 1.0 if together <= 1 else 1 / together
        else:
            c1 = 1.0 if first <= s1 else s1 / first
            c2 = 1.0 if second <= s2 else s2 / second
        out.embeddings.append(embedding)
        out.residuals.append(residual)
        out.embedding_factors.append(c1)
        out.residual_factors.append(c2)
        out.embedding_sum += c1 * embedding
        out.residual_sum += c2 * residual
    return out


def orthonormal_rows(k: int, p: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """k random orthonormal rows."""
    return torch.linalg.qr(torch.randn(p, k, dtype=torch.float64)).Q.T.to(dtype)


def principal_rows(gradients: Tensor, k: int) -> Tensor:
    """The k leading right singular vectors, by dense SVD."""
    return torch.linalg.svd(gradients.double(), full_matrices=False).Vh[:k]


def span_distance(rows: Tensor, others: Tensor) -> float:
    """‖P − P'‖₂ of the projections on two row spaces: 0 when they are the same subspace."""
    return float(torch.linalg.matrix_norm(rows.T.double() @ rows.double() - others.T.double() @ others.double(), 2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of the Gaussian mechanism (Balle and Wang 2018): Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), with μ = 1/σ."""

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
