"""What one step releases, for every mechanism: clipping thresholds, sigmas and the step's noise multiplier.

GEP releases embedding and residual, B-GEP the embedding only, GP (ordinary DP-SGD) the gradient itself: the residual
of an empty basis. Spectral is GP in coordinates that public data determines. Each mechanism is a small config type that
makes a `Release`; everything downstream sees only that.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from typing_extensions import override

from lightning_gep.arguments import finite_positive, not_negative, one_of, positive
from lightning_gep.errors import ConfigurationError

Clipping = Literal["separate", "joint"]
Split = Literal["optimal", "equal"] | tuple[float, float]
THRESHOLDS = {
    "clip_embedding": "It is the norm (S₁) each embedding is clipped to, e.g. 10.",
    "clip_residual": "It is the norm (S₂) each residual is clipped to, e.g. 2.",
    "clip_norm": "It is the norm each gradient is clipped to, e.g. 1.",
}

CLIPS = (1e-30, 1e30)
"""Near the ends of float32 a clipped gradient may be rounded to twice its threshold, or overflow."""


@dataclass(frozen=True)
class Part:
    """A released vector: rows clipped to norm `clip` (S), plus noise of standard deviation `clip`·`sigma`.

    An infinite `clip` is allowed only with `sigma` = 0 (no privacy at all).
    """

    clip: float
    sigma: float

    def __post_init__(self) -> None:
        positive("The clipping threshold", self.clip, "Give the norm that each record is clipped to.")
        not_negative("sigma", self.sigma, "Give the noise multiplier of this part; 0 means no noise.")
        if math.isinf(self.clip) and self.sigma > 0:
            raise ConfigurationError(
                f"An infinite clipping threshold with sigma={self.sigma} asks for infinite noise. "
                "Give a finite threshold, or sigma=0 for a run without privacy."
            )

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum; 0 without noise, even for an infinite clip."""
        return self.clip * self.sigma if self.sigma > 0 else 0.0


@dataclass(frozen=True)
class Release:
    """The parts of one step, released together on one Poisson subsample.

    Guarantee: for one record added or removed, the step is a Gaussian mechanism with `noise_multiplier` σ: a record
    shifts the release by at most 1/σ, measured in standard deviations of each coordinate's noise.

    - "separate": part j shifts by at most Sⱼ, so by 1/σⱼ in units of its noise, and both can happen at once:
      1/σ² = 1/σ₁² + 1/σ₂².
    - "joint": the record's (w/S₁, r/S₂) has norm at most 1, so the shift is at most 1/min(σ₁, σ₂). A larger σ on one
      part would add noise without adding privacy, so unequal values are refused.
    """

    embedding: Part | None
    residual: Part | None
    clipping: Clipping = "separate"

    def __post_init__(self) -> None:
        one_of("clipping", self.clipping, ("separate", "joint"))
        if not self.parts:
            raise ConfigurationError("A release needs an embedding, a residual, or both; it has neither.")
        if self.clipping == "joint":
            if len(self.parts) != 2:
                raise ConfigurationError("Joint clipping ties two parts together; use clipping='separate' with one.")
            first, second = self.parts
            if first.sigma != second.sigma:
                raise ConfigurationError(
                    f"Joint clipping takes one sigma for both parts, but got {first.sigma} and {second.sigma}. "
                    "Use split='equal' and set the balance by clip_embedding/clip_residual, or clipping='separate'."
                )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The released parts: one or two."""
        return tuple(part for part in (self.embedding, self.residual) if part is not None)

    @property
    def noise_multiplier(self) -> float:
        """The step's σ; 0 when any part is released without noise."""
        sigmas = [part.sigma for part in self.parts]
        if min(sigmas) == 0:
            return 0.0
        if self.clipping == "joint":
            return min(sigmas)
        return math.fsum(sigma**-2 for sigma in sigmas) ** -0.5

    def to_state(self) -> dict[str, Any]:
        """Plain numbers and strings for JSON; an infinite threshold becomes the string "inf"."""
        state = asdict(self)
        for name in ("embedding", "residual"):
            if state[name] is not None and math.isinf(state[name]["clip"]):
                state[name]["clip"] = "inf"
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Release":
        """The inverse of `to_state`."""

        def part(values: dict[str, Any] | None) -> Part | None:
            return None if values is None else Part(clip=float(values["clip"]), sigma=float(values["sigma"]))

        return cls(part(state["embedding"]), part(state["residual"]), state["clipping"])


class Mechanism(ABC):
    """What decides a release, apart from the noise multiplier; a subclass has one field per threshold."""

    uses_basis: ClassVar[bool] = False
    uses_public_data: ClassVar[bool] = False

    @classmethod
    def thresholds(cls) -> tuple[str, ...]:
        """The names of its clipping thresholds."""
        return tuple(name for name in cls.__dataclass_fields__ if name in THRESHOLDS)  # type: ignore[attr-defined]

    def __post_init__(self) -> None:
        for name in self.thresholds():
            clip = positive(name, getattr(self, name), THRESHOLDS[name])
            if not (CLIPS[0] <= clip <= CLIPS[1] or math.isinf(clip)):
                raise ConfigurationError(
                    f"{name}={clip:g} is beyond what float32 gradients can be clipped to. Use a number from "
                    f"{CLIPS[0]:g} to {CLIPS[1]:g}; scale the loss if its gradients are that small or large.",
                    setting=name,
                )

    @abstractmethod
    def release(self, noise_multiplier: float, *, k: int | None = None, num_parameters: int | None = None) -> Release:
        """The release whose noise multiplier is `noise_multiplier`; k and p are needed by GEP's optimal split."""


@dataclass(frozen=True)
class GEP(Mechanism):
    """Embedding and residual are both released: an unbiased gradient.

    `split` divides the step's noise multiplier σ between the parts, 1/σ₁² + 1/σ₂² = 1/σ² (separate clipping):

    - "optimal" minimises the expected noise energy k(S₁σ₁)² + p(S₂σ₂)²: 1/σ₁² ∝ S₁√k and 1/σ₂² ∝ S₂√p;
    - "equal" is the paper's σ₁ = σ₂ = √2·σ;
    - a pair (σ₁, σ₂) fixes their ratio; both are scaled so that the step has exactly σ.

    Joint clipping always takes σ₁ = σ₂ = σ; a pair of unequal numbers is refused.
    """

    clip_embedding: float = 10.0
    clip_residual: float = 2.0
    clipping: Clipping = "separate"
    split: Split = "optimal"

    uses_basis = uses_public_data = True

    def __post_init__(self) -> None:
        super().__post_init__()
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

    @override
    def release(self, noise_multiplier: float, *, k: int | None = None, num_parameters: int | None = None) -> Release:
        first = second = sigma = noise_multiplier
        # An infinite threshold has no noise to split; `Part` refuses it with noise.
        if self.clipping == "separate" and sigma > 0 and math.isfinite(self.clip_embedding + self.clip_residual):
            share = self._embedding_share(k, num_parameters)
            first, second = sigma / math.sqrt(share), sigma / math.sqrt(1 - share)
        return Release(Part(self.clip_embedding, first), Part(self.clip_residual, second), self.clipping)

    def _embedding_share(self, k: int | None, num_parameters: int | None) -> float:
        """The fraction of 1/σ² that goes to the embedding."""
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
class BGEP(Mechanism):
    """Only the embedding is released: less noise, but biased, because everything outside the subspace is lost."""

    clip_embedding: float = 10.0

    uses_basis = uses_public_data = True

    @override
    def release(self, noise_multiplier: float, *, k: int | None = None, num_parameters: int | None = None) -> Release:
        return Release(embedding=Part(self.clip_embedding, noise_multiplier), residual=None)


@dataclass(frozen=True)
class GP(Mechanism):
    """Ordinary DP-SGD: no basis, the clipped gradient plus noise."""

    clip_norm: float = 1.0

    @override
    def release(self, noise_multiplier: float, *, k: int | None = None, num_parameters: int | None = None) -> Release:
        return Release(embedding=None, residual=Part(self.clip_norm, noise_multiplier))


@dataclass(frozen=True)
class Spectral(GP):
    """DP-SGD in coordinates shaped by the public gradients' spectrum (see `lightning_gep.algorithm.spectral`).

    The coordinates are a public linear map of the gradient, and the clip is on them, so the release is that of GP.
    """

    uses_public_data = True


MECHANISMS: dict[str, type[Mechanism]] = {"gep": GEP, "bgep": BGEP, "gp": GP, "spectral": Spectral}


def make_mechanism(
    name: str,
    *,
    clipping: Clipping = "separate",
    split: Split = "optimal",
    clip_embedding: float | None = None,
    clip_residual: float | None = None,
    clip_norm: float | None = None,
) -> Mechanism:
    """The mechanism of that name; None keeps a default, and a threshold that the mechanism lacks is refused."""
    kind = MECHANISMS[one_of("mechanism", name, MECHANISMS)]
    clips = {"clip_embedding": clip_embedding, "clip_residual": clip_residual, "clip_norm": clip_norm}
    given: dict[str, Any] = {key: value for key, value in clips.items() if value is not None}
    for key in given.keys() - set(kind.thresholds()):
        raise ConfigurationError(
            f"{key}={given[key]!r} has no meaning for mechanism={name!r}, which takes {', '.join(kind.thresholds())}. "
            "Remove it, or choose another mechanism.",
            setting=key,
        )
    gep = GEP(clipping=clipping, split=split)  # a misspelt value is an error for every mechanism
    if kind is GEP:
        return replace(gep, **given)
    if clipping != "separate":
        raise ConfigurationError(
            f"clipping={clipping!r} ties embedding and residual together, but mechanism={name!r} releases only one "
            "part. Use clipping='separate'.",
            setting="clipping",
        )
    return kind(**given)
