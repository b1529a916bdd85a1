"""What one step releases: one or two vectors, each clipped and perturbed, and the noise multiplier they amount to."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lightning_gep.arguments import not_negative, one_of, positive
from lightning_gep.errors import ConfigurationError

Clipping = Literal["separate", "joint"]


@dataclass(frozen=True)
class Part:
    """A vector that is released: rows clipped to norm `clip` (S), noise of standard deviation `clip`·`sigma`.

    An infinite `clip` is allowed when `sigma` is 0 (no privacy at all); with noise it would ask for infinite noise.
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
        """Standard deviation of the noise on the sum; 0 (not ∞·0 = NaN) without noise."""
        return self.clip * self.sigma if self.sigma > 0 else 0.0


@dataclass(frozen=True)
class Release:
    """The parts of one step, released together on one Poisson subsample.

    Guarantee: `noise_multiplier` is σ of the Gaussian mechanism that the step amounts to for one record added or
    removed. A record shifts the release by at most 1/σ when each coordinate is measured in its noise's standard
    deviation.

    - "separate": part j shifts by at most Sⱼ, so by 1/σⱼ in units of its noise, and both can happen at once:
      1/σ² = 1/σ₁² + 1/σ₂².
    - "joint": the record's (w/S₁, r/S₂) has norm at most 1, so the shift is at most 1/min(σ₁, σ₂). A larger σ on one
      part would be noise that buys nothing; unequal values are refused.
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
        """The parts that are there."""
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
        """Plain numbers and strings, fit for JSON (an infinite threshold becomes the string "inf")."""
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
