"""Gradient Embedding Perturbation: Algorithm 1 of the paper, streamed over microbatches."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.clipping import clip_factors, residual_norm_bound, row_norms
from lightning_gep.algorithm.diagnostics import Diagnostics
from lightning_gep.algorithm.noise import Noise
from lightning_gep.algorithm.strips import strips_in_float64
from lightning_gep.algorithm.subspace import Anchors, BasisSource
from lightning_gep.privacy.release import Part, Release

BITS_BELOW_NOISE = 20
"""Releases are multiples of a grid this many binary digits finer than their noise."""


def gradient_embedding_perturbation(
    anchors: Anchors,
    private_gradients: Iterable[Tensor],
    *,
    subspace: BasisSource,
    release: Release,
    noise: Noise,
    expected_batch_size: int,
    rows_at_once: int = 1,
    step: int,
    charge: Callable[[], None],
    all_reduce: Callable[[Tensor], Tensor] = lambda total: total,
) -> tuple[Tensor, Diagnostics]:
    """One private gradient, as in Algorithm 1 (there: m anchors, n records, thresholds S₁ and S₂).

    Guarantee: for one record added or removed the result is as private as one Gaussian mechanism with noise multiplier
    `release.noise_multiplier`, if `private_gradients` are the records of one Poisson draw, each row a function of its
    own record and of public values, and `anchors` are public. `charge` is called after the sums are formed and before
    any noise is drawn. With several processes each brings its share of the records, one of them the noise, and
    `all_reduce` adds up; nothing without noise is shared. The noisy sums are rounded to a grid that depends on the
    noise's standard deviation alone: see `on_a_grid`. The diagnostics are not private.

    Microbatches with fewer than `rows_at_once` rows are projected as if they had as many: a product of matrices rounds
    differently in other sizes, and one record more should not change that of the others.
    """
    # First stage: an orthonormal basis B of the anchor subspace.
    B = subspace.at_step(step, anchors)

    # Second stage: embeddings W = GBᵀ and residuals R = G − WB, their rows clipped to S₁ and S₂, summed.
    sums = Sums.zero(B)
    for G in private_gradients:
        sums.add(G, B, release, rows_at_once)
        del G  # or it would still be held while the next microbatch is computed

    # Third stage: perturb both sums, w̃ = w + z₁ and r̃ = r + z₂, and put them together: ṽ = (w̃B + r̃)/n̄.
    charge()
    w = perturb(sums.embedding, release.embedding, noise, step, "embedding")
    r = perturb(sums.residual(B), release.residual, noise, step, "residual")
    w, r = (None if part is None else all_reduce(part) for part in (w, r))
    w, r = on_a_grid(w, release.embedding), on_a_grid(r, release.residual)
    return reconstruct(w, r, B) / expected_batch_size, sums.diagnostics


@dataclass
class Sums:
    """Sums over the records of one step, in float64: neither residuals nor anything n × p is kept.

    With cᵢ the factor of record i's residual, Σcᵢrᵢ = Σcᵢgᵢ − (Σcᵢwᵢ)B. The sums of several processes add up.
    """

    embedding: Tensor
    """Σ of clipped embeddings (k)."""
    gradient: Tensor
    """Σ of gradients times their residual's factor (p)."""
    embedding_in_residual: Tensor
    """Σ of embeddings times their residual's factor (k)."""
    diagnostics: Diagnostics

    @classmethod
    def zero(cls, basis: Basis) -> "Sums":
        """The sums of an empty batch."""
        like = basis.blocks[0]
        embedding, gradient, other = (
            like.new_zeros(size, dtype=torch.float64)
            for size in (basis.dimension, basis.num_parameters, basis.dimension)
        )
        return cls(embedding, gradient, other, Diagnostics.zero(like.device))

    def add(self, gradients: Tensor, basis: Basis, release: Release, rows_at_once: int = 1) -> None:
        """Project, clip and add one microbatch of per-sample gradients (n × p).

        Guarantee: one more record changes `embedding` by at most S₁ and `residual` by at most S₂ in norm (joint
        clipping: (·/S₁, ·/S₂) by at most 1). A record whose gradient or embedding is not finite adds zero: its row is
        replaced, since 0·NaN is NaN.
        """
        gradients = gradients.to(basis.blocks[0].dtype)
        gradient_norms = row_norms(gradients)
        embeddings = basis.embed(filled_up(gradients, rows_at_once))[: len(gradients)]
        finite = torch.isfinite(gradient_norms) & torch.isfinite(embeddings).all(dim=1)
        embeddings = torch.where(finite[:, None], embeddings, 0.0)
        gradient_norms = torch.where(finite, gradient_norms, 0.0)
        embedding_norms = row_norms(embeddings)
        residual_norms = residual_norm_bound(gradient_norms, embedding_norms, basis)
        embedding_factors, residual_factors = clip_factors(embedding_norms, residual_norms, release)

        self.embedding += embedding_factors @ embeddings
        if release.residual is not None:
            self.embedding_in_residual += residual_factors @ embeddings
            self.gradient += weighted_sum(residual_factors, gradients, finite)
        self.diagnostics.add(finite, gradient_norms, residual_norms, embedding_factors, residual_factors)

    def residual(self, basis: Basis) -> Tensor:
        """Σ of clipped residuals (p), subtracted in float64 because no noise has been added yet."""
        return self.gradient - basis.expand(self.embedding_in_residual)


def filled_up(rows: Tensor, count: int) -> Tensor:
    """The rows, with zeros below them if they are fewer."""
    return torch.cat([rows, rows.new_zeros(count - len(rows), rows.shape[1])]) if len(rows) < count else rows


def weighted_sum(factors: Tensor, rows: Tensor, used: Tensor) -> Tensor:
    """Σ factorᵢ·rowᵢ over the rows that are `used`, in float64, a strip of columns at a time."""
    total = rows.new_empty(rows.shape[1], dtype=torch.float64)
    # Nearly always all are used. A CPU saves a pass by asking; any other device would have to be waited for.
    all_used = rows.device.type == "cpu" and bool(used.all())
    for columns, strip in strips_in_float64(rows):
        torch.mv((strip if all_used else torch.where(used[:, None], strip, 0.0)).T, factors, out=total[columns])
    return total


def perturb(total: Tensor, part: Part | None, noise: Noise, step: int, name: str) -> Tensor | None:
    """The sum with noise of standard deviation S·σ on every coordinate; None if the part is not released."""
    if part is None:
        return None
    if part.noise_std == 0.0:
        return total
    return total + part.noise_std * noise.normal(len(total), step=step, part=name, device=total.device)


def on_a_grid(noisy: Tensor | None, part: Part | None) -> Tensor | None:
    """The noisy sum rounded to multiples of a public number, at most a millionth of the noise's standard deviation.

    The last bits of a float64 sum show what was added up, whatever the noise: 0.7 + z is a multiple of 2⁻⁵³ where it is
    close to zero, and z alone is not (Mironov 2012). Every multiple stands for thousands of float64 numbers, so all of
    them can come about with any record and without it.
    """
    if noisy is None or part is None or part.noise_std == 0.0:
        return noisy
    unit = 2.0 ** (math.floor(math.log2(part.noise_std)) - BITS_BELOW_NOISE)  # a power of 2: dividing by it is exact
    return torch.round(noisy / unit) * unit


def reconstruct(embedding: Tensor | None, residual: Tensor | None, basis: Basis) -> Tensor:
    """w̃B + r̃ without the part of r̃ inside the subspace: the true residual is zero there, so that part is noise.

    Only noisy values come in, so everything here is post-processing, this projection included.
    """
    if residual is None:
        assert embedding is not None, "a release has at least one part"
        return basis.expand(embedding)
    inside = basis.embed(residual.to(basis.blocks[0].dtype)[None])[0]
    return residual + basis.expand(-inside if embedding is None else embedding - inside)
