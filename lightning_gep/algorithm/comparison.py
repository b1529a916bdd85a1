"""Which mechanism has the least noise for its signal, told from public gradients alone."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.clipping import residual_norm_bound
from lightning_gep.algorithm.gep import Sums, reconstruct
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.linalg import row_norms
from lightning_gep.algorithm.spectral import TrackedSpectrum
from lightning_gep.algorithm.subspace import BasisSource, NoSubspace
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.privacy.release import MECHANISMS, Release

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Thresholds that are tried, as quantiles of the norms: every mechanism gets the same number of trials."""


@dataclass(frozen=True)
class NoiseLevel:
    """A mechanism at the best of the thresholds tried."""

    mechanism: str
    noise_over_signal: float
    """Length of the noise of a step over that of the clipped mean gradient along the true one."""
    clips: dict[str, float]


def compare_mechanisms(
    anchors: Tensor, held_out: Tensor, groups: ParameterGroups, *, k: int, noise_multiplier: float, batch_size: int
) -> list[NoiseLevel]:
    """All mechanisms on public gradients (n × p), the least noisy first.

    Bases and spectra are fitted to `anchors`; what they are worth shows on `held_out`. B-GEP has little noise because
    it leaves out everything outside the subspace, and that bias is not in the figure: its signal counts only where it
    has the direction of the true gradient.
    """
    bases: dict[str, BasisSource] = {
        "gep": TrackedSubspace(groups.sizes, groups.quotas(k), num_anchors=len(anchors), decay=0.0),
        "gp": NoSubspace(groups.num_parameters, anchors),
        "spectral": TrackedSpectrum(groups.shapes, num_anchors=len(anchors), decay=0.0),
    }
    bases["bgep"] = bases["gep"]  # one basis serves both
    levels = []
    for name in MECHANISMS:
        basis = bases[name].at_step(0, lambda: [anchors])
        options = [
            NoiseLevel(name, noise_over_signal(basis, release, held_out, batch_size), clips)
            for clips, release in _releases(name, basis, held_out, noise_multiplier)
        ]
        levels.append(min(options, key=lambda level: level.noise_over_signal))
    return sorted(levels, key=lambda level: level.noise_over_signal)


def noise_over_signal(basis: Basis, release: Release, gradients: Tensor, batch_size: int) -> float:
    """Length of a step's noise over that of the clipped mean gradient along the true one; inf if that points away."""
    sums = Sums.zero(basis)
    sums.add(basis.coordinates(gradients.clone()), basis, release)
    embedding = None if release.embedding is None else sums.embedding
    residual = None if release.residual is None else sums.residual(basis)
    clipped = basis.gradient(reconstruct(embedding, residual, basis)) / len(gradients)
    true = gradients.double().mean(0)
    signal = float(clipped @ true / true.norm())
    return math.sqrt(noise_energy(basis, release)) / batch_size / signal if signal > 0 else math.inf


def noise_energy(basis: Basis, release: Release) -> float:
    """The expected square of the length of the noise in a step's sum, mapped back to the parameters."""
    embedding = 0.0 if release.embedding is None else release.embedding.noise_std**2 * basis.dimension
    residual = 0.0 if release.residual is None else release.residual.noise_std**2 * basis.unit_noise
    return embedding + residual


def _releases(
    name: str, basis: Basis, gradients: Tensor, noise_multiplier: float
) -> Iterator[tuple[dict[str, float], Release]]:
    coordinates = basis.coordinates(gradients.clone())
    norms, embeddings = row_norms(coordinates), row_norms(basis.embed(coordinates))
    residuals = residual_norm_bound(norms, embeddings, basis)
    by_name = {"clip_norm": norms, "clip_embedding": embeddings, "clip_residual": residuals}
    for quantile in QUANTILES:
        clips = {clip: float(torch.quantile(by_name[clip], quantile)) or 1.0 for clip in MECHANISMS[name].thresholds()}
        mechanism = MECHANISMS[name](**clips)
        yield clips, mechanism.release(noise_multiplier, k=basis.dimension, num_parameters=basis.num_parameters)
