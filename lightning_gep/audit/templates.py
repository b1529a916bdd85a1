"""What a white-box attacker looks for in a released gradient: the contribution of a canary, in units of the noise.

The attacker knows the public basis, the thresholds and the noise. Nothing here has to be right for a bound to hold: a
score that fits the release badly only shows less.
"""

from dataclasses import replace

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.spectral import SpectralBasis
from lightning_gep.privacy.release import Part, Release

EXCESS = 10.0
"""How far the parts of a canary exceed their thresholds."""


def contributions(gradients: Tensor, basis: Basis, release: Release) -> list[tuple[Part, Tensor]]:
    """What gradients (n × p) add to each released part, as vectors (n × p) in the coordinates that are clipped."""
    own = basis.coordinates(gradients.clone().to(basis.blocks[0].dtype))
    inside = _inside(basis.embed(own), basis)
    both = ((release.embedding, inside), (release.residual, own - inside))
    parts = [(part, rows, (rows / part.clip).norm(dim=1)) for part, rows in both if part is not None]
    joint = torch.stack([norms for *_, norms in parts]).norm(dim=0)
    excesses = [joint if release.clipping == "joint" else norms for *_, norms in parts]
    return [
        (part, rows / excess.clamp(min=1)[:, None]) for (part, rows, _), excess in zip(parts, excesses, strict=True)
    ]


def templates(canaries: Tensor, basis: Basis, release: Release) -> Tensor:
    """Vectors (count × p) whose products with `coordinates` of the noisy sum are the scores of these canaries.

    By Neyman and Pearson the best score is the product of release and contribution, each coordinate divided by the
    variance of its noise. Scores have a standard deviation of 1, and a canary that exceeds all thresholds shifts its
    own by 1/σ.
    """
    parts = contributions(canaries, basis, release)
    energy = sum(((rows / part.noise_std).square().sum(1) for part, rows in parts), torch.zeros(len(canaries)))
    total = torch.stack([rows / part.noise_std**2 for part, rows in parts]).sum(0)
    return total / energy.sqrt().clamp(min=1e-12)[:, None]


def coordinates(released: Tensor, basis: Basis) -> Tensor:
    """A released gradient (p) in the coordinates that were clipped and perturbed."""
    values = basis.coordinates(released[None].clone().to(basis.blocks[0].dtype))[0]
    if isinstance(basis, SpectralBasis) and basis.precondition:
        # The release was mapped back without the scales.
        values = values * torch.cat([rotation.scales.flatten() for rotation in basis.rotations])
    return values


def separate_canaries(most: int, basis: Basis, release: Release) -> Tensor:
    """Gradients (at most `most` × p) that exceed every threshold, and of which none adds to another's score."""
    room = {basis.dimension: release.embedding, basis.num_parameters - basis.dimension: release.residual}
    count = max(1, min(most, *(size for size, part in room.items() if part is not None)))
    rows = torch.zeros(count, basis.num_parameters, dtype=torch.float64)
    if release.embedding is not None:
        embeddings = _orthonormal(torch.randn(count, basis.dimension).double())
        rows += EXCESS * release.embedding.clip * _inside(embeddings, basis)
    if release.residual is not None:
        drawn = torch.randn(count, basis.num_parameters, dtype=basis.blocks[0].dtype)
        residuals = _orthonormal((drawn - _inside(basis.embed(drawn), basis)).double())
        rows += EXCESS * release.residual.clip * residuals
    plain = replace(basis, precondition=False) if isinstance(basis, SpectralBasis) else basis
    return torch.stack([plain.gradient(row) for row in rows])


def random_canaries(count: int, num_parameters: int, release: Release) -> Tensor:
    """Gradients in random directions, so nearly orthogonal, of which a few coordinates already exceed a threshold."""
    return EXCESS * max(part.clip for part in release.parts) * torch.randn(count, num_parameters)


def _inside(embeddings: Tensor, basis: Basis) -> Tensor:
    """The vectors in the subspace that have these embeddings."""
    own = embeddings.to(basis.blocks[0].dtype).split(basis.dimensions, dim=1)
    return torch.cat([part @ block for part, block in zip(own, basis.blocks, strict=True)], dim=1)


def _orthonormal(rows: Tensor) -> Tensor:
    return torch.linalg.qr(rows.T).Q.T
