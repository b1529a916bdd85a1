"""The three mechanisms a user can name, as small config types that all make a `Release`.

GEP releases embedding and residual, B-GEP the embedding only, GP (ordinary DP-SGD) the gradient itself: the residual
of an empty basis. Everything downstream sees the release alone.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from lightning_gep.arguments import finite_positive, one_of, positive
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.release import Clipping, Part, Release

Split = Literal["optimal", "equal"] | tuple[float, float]


@dataclass(frozen=True)
class GEP:
    """Embedding and residual, both released: an unbiased gradient.

    `split` shares the step's noise multiplier σ between the parts, 1/σ₁² + 1/σ₂² = 1/σ² (separate clipping):

    - "optimal" minimises the expected noise energy k(S₁σ₁)² + p(S₂σ₂)²: 1/σ₁² ∝ S₁√k and 1/σ₂² ∝ S₂√p;
    - "equal" is the paper's σ₁ = σ₂ = √2·σ;
    - a pair (σ₁, σ₂) fixes their ratio; both are scaled so that the step has exactly σ.

    Joint clipping takes σ₁ = σ₂ = σ, whatever the split is called; a pair of unequal numbers is refused.
    """

    clip_embedding: float = 10.0
    clip_residual: float = 2.0
    clipping: Clipping = "separate"
    split: Split = "optimal"

    name: ClassVar[str] = "gep"
    uses_basis: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(
            "clip_embedding",
            self.clip_embedding,
            "It is the norm (S₁) each embedding is clipped to, e.g. 10.",
        )
        positive("clip_residual", self.clip_residual, "It is the norm (S₂) each residual is clipped to, e.g. 2.")
        one_of("clipping", self.clipping, ("separate", "joint"))
        if isinstance(self.split, str):
            one_of("split", self.split, ("optimal", "equal"))
            return
        if len(self.split) != 2:
            raise ConfigurationError(
                f"split={self.split!r} must be 'optimal', 'equal' or a pair (sigma_embedding, sigma_residual).",
                setting="split",
            )
        for sigma in self.split:
            finite_positive("split", sigma, "A pair gives the two sigmas, e.g. (3.0, 3.0); only their ratio matters.")
        if self.clipping == "joint" and self.split[0] != self.split[1]:
            raise ConfigurationError(
                f"Joint clipping takes equal sigmas, but split={self.split!r}. Use split='equal' and set the balance "
                "by clip_embedding/clip_residual, or clipping='separate'.",
                setting="split",
            )

    def release(self, noise_multiplier: float, *, k: int | None = None, num_parameters: int | None = None) -> Release:
        """The release whose noise multiplier is `noise_multiplier`; k and p are needed by the optimal split."""
        sigma_embedding, sigma_residual = self._sigmas(noise_multiplier, k, num_parameters)
        return Release(
            embedding=Part(self.clip_embedding, sigma_embedding),
            residual=Part(self.clip_residual, sigma_residual),
            clipping=self.clipping,
        )

    def _sigmas(self, sigma: float, k: int | None, num_parameters: int | None) -> tuple[float, float]:
        if self.clipping == "joint" or sigma == 0 or math.isinf(self.clip_embedding + self.clip_residual):
            return sigma, sigma  # an infinite threshold has no noise to split; with noise, `Part` refuses it
        share = self._embedding_share(k, num_parameters)
        return sigma / math.sqrt(share), sigma / math.sqrt(1 - share)

    def _embedding_share(self, k: int | None, num_parameters: int | None) -> float:
        """The part of 1/σ² that goes to the embedding."""
        if self.split == "equal":
            return 0.5
        if isinstance(self.split, tuple):
            embedding, residual = (sigma**-2 for sigma in self.split)
            return embedding / (embedding + residual)
        if k is None or num_parameters is None:
            raise ConfigurationError(
                f"split='optimal' weighs the parts by their noise, so it needs k and num_parameters, but got k={k} and "
                f"num_parameters={num_parameters}. Give both, or use split='equal'.",
                setting="split",
            )
        embedding = self.clip_embedding * math.sqrt(k)
        residual = self.clip_residual * math.sqrt(num_parameters)
        return embedding / (embedding + residual)


@dataclass(frozen=True)
class BGEP:
    """The embedding alone: less noise, but what lies outside the anchor subspace is lost (biased)."""

    clip_embedding: float = 10.0

    name: ClassVar[str] = "bgep"
    uses_basis: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(
            "clip_embedding",
            self.clip_embedding,
            "It is the norm (S₁) each embedding is clipped to, e.g. 10.",
        )

    def release(self, noise_multiplier: float, *, k: int | None = None, num_parameters: int | None = None) -> Release:
        """The release whose noise multiplier is `noise_multiplier`."""
        return Release(embedding=Part(self.clip_embedding, noise_multiplier), residual=None)


@dataclass(frozen=True)
class GP:
    """Ordinary DP-SGD: no basis, the clipped gradient plus noise."""

    clip_norm: float = 1.0

    name: ClassVar[str] = "gp"
    uses_basis: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("clip_norm", self.clip_norm, "It is the norm each gradient is clipped to, e.g. 1.")

    def release(self, noise_multiplier: float, *, k: int | None = None, num_parameters: int | None = None) -> Release:
        """The release whose noise multiplier is `noise_multiplier`."""
        return Release(embedding=None, residual=Part(self.clip_norm, noise_multiplier))


Mechanism = GEP | BGEP | GP

MECHANISMS: dict[str, type[GEP] | type[BGEP] | type[GP]] = {"gep": GEP, "bgep": BGEP, "gp": GP}
