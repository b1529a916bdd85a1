"""From a target ε to the noise that achieves it: `calibrate`, usable without any training."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from scipy.optimize import brentq

from lightning_gep.arguments import finite_positive, positive_integer
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import (
    WHOLE_ORDERS,
    History,
    SampledGaussian,
    by_rdp,
    check_delta,
    make_accountant,
    roughly_by_pld,
)
from lightning_gep.privacy.accounting import epsilon as epsilon_of
from lightning_gep.privacy.release import GEP, Clipping, Release, Split, make_mechanism

SMALLEST_NOISE, LARGEST_NOISE = 0.01, 1e4
TOLERANCE = 3e-4
"""How far below the target ε may end, relative to it."""


@dataclass(frozen=True)
class Calibration:
    """The noise that `calibrate` found.

    Args:
        noise_multiplier: σ of a whole step.
        epsilon: The ε that it gives: at or just below the target, never above it.
        delta: The δ of the target.
        release: What a step releases with this noise.

    Example:
        >>> found = calibrate(epsilon=2.0, delta=1e-5, sample_rate=0.01, steps=1000, mechanism="gp")
        >>> found.epsilon <= 2.0
        True

    """

    noise_multiplier: float
    epsilon: float
    delta: float
    release: Release

    @property
    def sigma_embedding(self) -> float | None:
        """σ₁, or None where no embedding is released."""
        return None if self.release.embedding is None else self.release.embedding.sigma

    @property
    def sigma_residual(self) -> float | None:
        """σ₂, or None where no residual is released; for GP the σ of the gradient."""
        return None if self.release.residual is None else self.release.residual.sigma


def calibrate(
    *,
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    mechanism: str = "gep",
    clipping: Clipping = "separate",
    split: Split = "optimal",
    accountant: str = "pld",
    clip_embedding: float | None = None,
    clip_residual: float | None = None,
    clip_norm: float | None = None,
    k: int | None = None,
    num_parameters: int | None = None,
) -> Calibration:
    """The least noise whose ε after `steps` steps is at or below the target, without training anything.

    Args:
        epsilon: The target ε, for adding or removing one record.
        delta: The target δ.
        sample_rate: q: the expected batch size over the number of training records.
        steps: Optimizer steps of the whole run.
        mechanism: "gep", "bgep", "gp" or "spectral".
        clipping: "separate" or "joint" (GEP only).
        split: How GEP divides the noise between embedding and residual: "optimal", "equal" or a pair (σ₁, σ₂) whose
            ratio is kept.
        accountant: "pld" (tight), "rdp" (fast, looser) or "prv" (tight, needs Opacus).
        clip_embedding: S₁, for GEP and B-GEP. Required by the optimal split.
        clip_residual: S₂, for GEP. Required by the optimal split.
        clip_norm: S, for GP.
        k: Number of basis vectors. Required by the optimal split.
        num_parameters: Number of trainable parameters (p). Required by the optimal split.

    Returns:
        The noise multipliers and the ε they give.

    Raises:
        ConfigurationError: If an argument is invalid or missing, or no noise multiplier up to 10 000 reaches the
            target.

    Example:
        >>> found = calibrate(
        ...     epsilon=8.0, delta=1e-5, sample_rate=1000 / 50_000, steps=2500,
        ...     clip_embedding=10.0, clip_residual=2.0, k=1000, num_parameters=270_000,
        ... )
        >>> round(found.noise_multiplier, 2), round(found.sigma_embedding, 2), round(found.sigma_residual, 2)
        (0.89, 1.85, 1.02)

    """
    clips = {"clip_embedding": clip_embedding, "clip_residual": clip_residual, "clip_norm": clip_norm}
    sizes = {"k": k, "num_parameters": num_parameters}
    config = make_mechanism(mechanism, clipping=clipping, split=split, **clips)
    missing = [name for name, value in {**clips, **sizes}.items() if value is None and name != "clip_norm"]
    if missing and isinstance(config, GEP) and (config.clipping, config.split) == ("separate", "optimal"):
        raise ConfigurationError(
            f"split='optimal' weighs embedding and residual by their noise, so it needs {', '.join(missing)}. "
            "Give them, or use split='equal'.",
            setting="split",
        )
    config.release(1.0, **sizes)  # refuses bad values before the seconds of a search
    sigma, spent = noise_multiplier_for(epsilon, delta, sample_rate, steps, accountant)
    return Calibration(sigma, spent, delta, config.release(sigma, **sizes))


@cache  # slow, and often asked again: mechanisms that are compared share their σ
def noise_multiplier_for(
    epsilon: float, delta: float, sample_rate: float, steps: int, accountant: str
) -> tuple[float, float]:
    """The least σ of a step whose ε after `steps` steps is at or below `epsilon`, and that ε.

    RDP is fast and never below the tight accountants, so its σ is an upper bound for theirs. PLD is searched on a
    coarse grid, and only what is found there is looked at closely.
    """
    finite_positive("epsilon", epsilon, "Give the privacy budget, e.g. 8.0.")
    check_delta(delta)
    positive_integer("steps", steps, "It is the number of optimizer steps of the whole run.")
    make_accountant(accountant)

    def run(sigma: float) -> History:
        return [(SampledGaussian(sample_rate, sigma), steps)]

    def exact(sigma: float) -> float:
        return epsilon_of(run(sigma), delta, accountant)

    def by_bound(sigma: float) -> float:
        return exact(sigma) if accountant == "rdp" else by_rdp(run(sigma), delta, WHOLE_ORDERS)

    if by_rdp(run(LARGEST_NOISE), delta) > epsilon:
        raise ConfigurationError(
            f"epsilon={epsilon} with delta={delta} over {steps} steps at sampling rate {sample_rate:.3g} cannot be "
            f"reached with a noise multiplier up to {LARGEST_NOISE:.0f}. Raise epsilon or delta, or train less.",
            setting="epsilon",
        )
    found = _least_noise(by_bound, epsilon, LARGEST_NOISE, nearest=SMALLEST_NOISE / LARGEST_NOISE)
    if accountant == "pld":
        rough, _ = _least_noise(lambda s: roughly_by_pld(run(s), delta, epsilon), epsilon, found[0], nearest=0.87)
        if epsilon * (1 - 2 * TOLERANCE) <= exact(rough) <= epsilon:
            return rough, exact(rough)
    return found if accountant == "rdp" else _least_noise(exact, epsilon, found[0], nearest=0.87)


def check_one_target(epsilon: float | None, noise_multiplier: float | None) -> None:
    """Raises ConfigurationError unless exactly one of the two is given."""
    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigurationError(
            f"Give exactly one of epsilon and noise_multiplier, but got epsilon={epsilon} and "
            f"noise_multiplier={noise_multiplier}. Use epsilon=8.0 to have the noise calibrated.",
            setting="epsilon",
        )


def _least_noise(
    epsilon_of: Callable[[float], float], target: float, largest: float, nearest: float
) -> tuple[float, float]:
    """The least σ up to `largest` with epsilon_of(σ) ≤ target, and its ε; `largest` must be enough.

    ln ε is almost linear in ln σ, so Brent's method there needs few queries; `nearest` is how much smaller than
    `largest` a first lower bracket is. Any ε within the tolerance counts as a root. Only pairs that were computed and
    are at or below the target are returned (or `largest`, if there is none), so a search cut short costs noise, never
    privacy.
    """
    tried: dict[float, float] = {}

    def gap(exponent: float) -> float:
        sigma = largest * math.exp(exponent)
        if sigma not in tried:
            tried[sigma] = epsilon_of(sigma)
        if target * (1 - TOLERANCE) <= tried[sigma] <= target:
            return 0.0
        return math.log(min(max(tried[sigma], 1e-300), 1e300) / (target * (1 - TOLERANCE / 2)))

    lowest, bottom = math.log(SMALLEST_NOISE / largest), math.log(nearest)
    while gap(bottom) < 0 and bottom > lowest:
        bottom = max(lowest, 2 * bottom)
    if gap(bottom) > 0 > gap(0.0):
        brentq(gap, bottom, 0.0, xtol=TOLERANCE / 10, maxiter=30, disp=False)
    return min(((s, value) for s, value in tried.items() if value <= target), default=(largest, epsilon_of(largest)))
