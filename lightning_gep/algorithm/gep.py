"""Gradient Embedding Perturbation: Algorithm 1 of the paper, streamed over microbatches."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis, FactoredRows, full_precision
from lightning_gep.algorithm.clipping import clip_factors, residual_norm_bound
from lightning_gep.algorithm.diagnostics import Diagnostics
from lightning_gep.algorithm.exchange import Exchange
from lightning_gep.algorithm.linalg import row_norms, weighted_sum
from lightning_gep.algorithm.noise import Noise
from lightning_gep.algorithm.residual_memory import ResidualMemory
from lightning_gep.algorithm.subspace import Anchors, BasisSource
from lightning_gep.privacy.release import Part, Release

FACTORED_MARGIN = 1e-3
"""Gradients that are never formed, of layers with one position, are added in float32 within a chunk; their norms count
for so much more."""
BITS_BELOW_NOISE = 20
"""Releases are multiples of a grid this many binary digits finer than their noise."""


def gradient_embedding_perturbation(
    anchors: Anchors,
    private_gradients: Iterable[Tensor | FactoredRows],
    *,
    subspace: BasisSource,
    release: Release,
    noise: Noise,
    expected_batch_size: int,
    microbatch_size: int = 1,
    step: int,
    charge: Callable[[], None],
    exchange: Exchange | None = None,
    residual_memory: ResidualMemory | None = None,
) -> tuple[Tensor, Diagnostics]:
    """Return one private gradient, as in Algorithm 1 (there: m anchors, n records, thresholds S₁ and S₂).

    Guarantee: under adding or removing one record, the result is as private as one Gaussian mechanism with noise
    multiplier `release.noise_multiplier`, provided that `private_gradients` are the records of one Poisson draw, each
    row a function of its own record and public values only, and that `anchors` are public. The diagnostics are not
    private.

    Args:
        anchors: A sweep over the public anchor gradients.
        private_gradients: Per-sample gradients in microbatches (n × p), or what tells their norms and sums, for a
            release without embedding.
        subspace: The source of the basis.
        release: Clipping thresholds and noise of the parts to release.
        noise: The source of standard normal noise.
        expected_batch_size: n̄, the fixed number that the noisy sums are divided by.
        microbatch_size: Smaller microbatches are zero-padded to this many rows before projection. Matrix products of
            another size round differently, so without padding one record could change how others are rounded.
        step: The step's number.
        charge: Called after the sums are formed and before any noise is drawn.
        exchange: Adds up over processes. Each contributes its share of the records and one of them the noise; the
            result is rounded to a grid that depends only on the noise (see `on_a_grid`). None: there is one process.
        residual_memory: What r̃ is replaced by, once released: see `ResidualMemory`. None: nothing.

    """
    # First stage: an orthonormal basis B of the anchor subspace.
    B = subspace.at_step(step, anchors)
    exchange = exchange or Exchange()

    # Second stage: embeddings W = GBᵀ and residuals R = G − WB, their rows clipped to S₁ and S₂, summed.
    sums = Sums.zero(B)
    within = exchange.thresholds(release, (B.dimension, B.num_parameters), expected_batch_size)
    for G in private_gradients:
        if isinstance(G, Tensor):
            sums.add(B.coordinates(zero_padded(G, microbatch_size))[: len(G)], B, within, microbatch_size)
        elif G.forms_rows:
            sums.add(B.formed(G), B, within, microbatch_size)
        else:
            sums.add_factored(G, B, within)
        del G  # free it before the next microbatch is computed

    # Third stage: perturb both sums, w̃ = w + z₁ and r̃ = r + z₂, and put them together: ṽ = (w̃B + r̃)/n̄.
    charge()
    w = perturb(sums.embedding, release.embedding, noise, step, "embedding")
    r = perturb(sums.residual(B), release.residual, noise, step, "residual")
    w, r = (
        None if noisy is None or part is None else on_a_grid(exchange.total(noisy, part, expected_batch_size), part)
        for noisy, part in ((w, release.embedding), (r, release.residual))
    )
    if residual_memory is not None:
        r = residual_memory(r)
    return B.gradient(reconstruct(w, r, B)) / expected_batch_size, sums.diagnostics


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
    factored: Tensor | None = None
    """Σ of clipped gradients that were never formed (p), not in coordinates yet; None if there are none."""

    @classmethod
    def zero(cls, basis: Basis) -> "Sums":
        """The sums of an empty batch."""
        like = basis.blocks[0]
        embedding, gradient, other = (
            like.new_zeros(size, dtype=torch.float64)
            for size in (basis.dimension, basis.num_parameters, basis.dimension)
        )
        return cls(embedding, gradient, other, Diagnostics.zero(like.device))

    def add(self, gradients: Tensor, basis: Basis, release: Release, microbatch_size: int = 1) -> None:
        """Project, clip and add one microbatch of per-sample gradients (n × p).

        Guarantee: adding a record changes `embedding` by at most S₁ and `residual` by at most S₂ in norm (with joint
        clipping, (·/S₁, ·/S₂) by at most 1). A record with a non-finite gradient or embedding contributes zero: its
        row is replaced, since 0·NaN is NaN.
        """
        gradients = gradients.to(basis.blocks[0].dtype)
        gradient_norms = row_norms(gradients)
        embeddings = basis.embed(zero_padded(gradients, microbatch_size))[: len(gradients)]
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

    def add_factored(self, gradients: FactoredRows, basis: Basis, release: Release) -> None:
        """Clip and add gradients that are never formed; the guarantee is that of `add`, for a basis of no vectors.

        The map to coordinates is linear, so it is applied once, to the sum.
        """
        assert release.embedding is None, "embeddings need the gradients themselves"
        with full_precision(self.gradient.device):
            norms = basis.norms(gradients) * (1 + FACTORED_MARGIN)
            finite = torch.isfinite(norms)
            norms = torch.where(finite, norms, 0.0)
            _, factors = clip_factors(torch.zeros_like(norms), norms, release)
            total = gradients.weighted_sum(torch.where(finite, factors, 0.0))
        self.factored = total if self.factored is None else self.factored + total
        self.diagnostics.add(finite, norms, norms, torch.ones_like(norms), factors)

    def residual(self, basis: Basis) -> Tensor:
        """Σ of clipped residuals (p), subtracted in float64 because no noise has been added yet."""
        residual = self.gradient - basis.expand(self.embedding_in_residual)
        return residual if self.factored is None else residual + basis.coordinates(self.factored.clone()[None])[0]


def zero_padded(rows: Tensor, count: int) -> Tensor:
    """`rows` with zero rows appended up to `count`."""
    return torch.cat([rows, rows.new_zeros(count - len(rows), rows.shape[1])]) if len(rows) < count else rows


def perturb(total: Tensor, part: Part | None, noise: Noise, step: int, name: str) -> Tensor | None:
    """The sum with noise of standard deviation S·σ on every coordinate; None if the part is not released."""
    if part is None:
        return None
    if part.noise_std == 0.0:
        return total
    return total + part.noise_std * noise.normal(len(total), step=step, part=name, device=total.device)


def on_a_grid(noisy: Tensor, part: Part) -> Tensor:
    """Round the noisy sum to multiples of a public number, at most a millionth of the noise's standard deviation.

    The low bits of a float64 sum reveal its terms whatever the noise: near zero, 0.7 + z is a multiple of 2⁻⁵³ while z
    alone is not (Mironov 2012). Each grid point covers thousands of float64 numbers, so every one of them is possible
    with and without any record.
    """
    if part.noise_std == 0.0:
        return noisy
    unit = 2.0 ** (math.floor(math.log2(part.noise_std)) - BITS_BELOW_NOISE)  # division by a power of 2 is exact
    return torch.round(noisy / unit) * unit


def reconstruct(embedding: Tensor | None, residual: Tensor | None, basis: Basis) -> Tensor:
    """w̃B + r̃ without the part of r̃ inside the subspace, where the true residual is zero: that part is pure noise.

    The inputs are already noisy, so all of this, including the projection, is post-processing.
    """
    if residual is None:
        assert embedding is not None, "a release has at least one part"
        return basis.expand(embedding)
    inside = basis.embed(residual.to(basis.blocks[0].dtype)[None])[0]
    return residual + basis.expand(-inside if embedding is None else embedding - inside)
