"""From a target ε to the noise that keeps it: `calibrate`, usable without any training."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from lightning_gep.accounting import SampledGaussian, check_delta, epsilon, make_accountant
from lightning_gep.checks import finite_positive, one_of, positive_integer
from lightning_gep.errors import ConfigurationError
from lightning_gep.release import Clipping, Release
from lightning_gep.variants import BGEP, GEP, GP, MECHANISMS, Mechanism, Split

SMALLEST_NOISE, LARGEST_NOISE = 0.02, 1e4
TOLERANCE = 3e-4


@dataclass(frozen=True)
class Calibration:
    """The noise for a target: `epsilon` is what it gives, at or below the target, never above it."""

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
        """σ₂, or None where no residual is released."""
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
    """The smallest noise whose ε after `steps` steps is at or below the target.

    The split between embedding and residual needs `clip_embedding`, `clip_residual`, `k` and `num_parameters` when it
    is "optimal"; "equal" and a given pair need none of them.
    """
    config = make_mechanism(
        mechanism,
        clipping=clipping,
        split=split,
        clip_embedding=clip_embedding,
        clip_residual=clip_residual,
        clip_norm=clip_norm,
    )
    if isinstance(config, GEP) and config.split == "optimal" and config.clipping == "separate":
        needed = {
            "clip_embedding": clip_embedding,
            "clip_residual": clip_residual,
            "k": k,
            "num_parameters": num_parameters,
        }
        missing = [name for name, value in needed.items() if value is None]
        if missing:
            raise ConfigurationError(
                f"split='optimal' weighs embedding and residual by their noise, so it needs {', '.join(missing)}. "
                "Give them, or use split='equal'."
            )
    config.release(1.0, k=k, num_parameters=num_parameters)
    sigma, spent = noise_multiplier_for(epsilon, delta, sample_rate, steps, accountant)
    return Calibration(sigma, spent, delta, config.release(sigma, k=k, num_parameters=num_parameters))


def make_mechanism(
    name: str,
    *,
    clipping: Clipping = "separate",
    split: Split = "optimal",
    clip_embedding: float | None = None,
    clip_residual: float | None = None,
    clip_norm: float | None = None,
) -> Mechanism:
    """The mechanism of that name; None keeps its default, and a setting it does not have is an error."""
    one_of("mechanism", name, MECHANISMS)
    clips = {"clip_embedding": clip_embedding, "clip_residual": clip_residual, "clip_norm": clip_norm}
    given = {key: value for key, value in clips.items() if value is not None}
    known = {"gep": {"clip_embedding", "clip_residual"}, "bgep": {"clip_embedding"}, "gp": {"clip_norm"}}[name]
    for key in given.keys() - known:
        raise ConfigurationError(
            f"{key}={given[key]!r} has no meaning for mechanism={name!r}, which takes {', '.join(sorted(known))}. "
            "Remove it, or choose another mechanism."
        )
    both = GEP(
        clip_embedding=given.get("clip_embedding", GEP.clip_embedding),
        clip_residual=given.get("clip_residual", GEP.clip_residual),
        clipping=clipping,
        split=split,
    )
    if name == "gep":
        return both
    if clipping != "separate":
        raise ConfigurationError(
            f"clipping={clipping!r} ties embedding and residual together, but mechanism={name!r} releases "
            "one part only. Use clipping='separate'."
        )
    return BGEP(**given) if name == "bgep" else GP(**given)


def noise_multiplier_for(
    epsilon: float, delta: float, sample_rate: float, steps: int, accountant: str
) -> tuple[float, float]:
    """The smallest σ of a step whose ε after `steps` steps is at or below `epsilon`, and that ε.

    RDP is fast and never below the tight accountants, so its σ brackets theirs from above; a few tight queries do the
    rest.
    """
    finite_positive("epsilon", epsilon, "Give the privacy budget, e.g. 8.0.")
    check_delta(delta)
    positive_integer("steps", steps, "It is the number of optimizer steps of the whole run.")
    make_accountant(accountant)
    SampledGaussian(sample_rate, 1.0)

    def after(name: str) -> Callable[[float], float]:
        return lambda sigma: epsilon_after(SampledGaussian(sample_rate, sigma), steps, delta, name)

    if after("rdp")(LARGEST_NOISE) > epsilon:
        raise ConfigurationError(
            f"epsilon={epsilon} with delta={delta} over {steps} steps at sampling rate {sample_rate:.3g} cannot be "
            f"reached: even a noise multiplier of {LARGEST_NOISE:.0f} gives more. Raise epsilon or delta, or "
            "train for fewer steps."
        )
    if after("rdp")(SMALLEST_NOISE) <= epsilon:
        return SMALLEST_NOISE, after(accountant)(SMALLEST_NOISE)
    by_rdp = after("rdp")
    sigma, spent = _smallest_noise(by_rdp, epsilon, SMALLEST_NOISE, LARGEST_NOISE, guess=1.0, slope=-1.0)
    if accountant == "rdp":
        return sigma, spent
    guess = 0.94 * sigma
    slope = math.log(by_rdp(guess) / spent) / math.log(guess / sigma)
    return _smallest_noise(after(accountant), epsilon, SMALLEST_NOISE, sigma, guess=guess, slope=slope)


def epsilon_after(event: SampledGaussian, steps: int, delta: float, accountant: str) -> float:
    """ε of `steps` equal steps."""
    return epsilon([(event, steps)], delta, accountant)


def paper_noise_multiplier(epsilon: float, delta: float, steps: int) -> float:
    """The step's σ by the paper's Theorem 3.4: σ₁ = σ₂ ≥ 2√(2T·ln(1/δ))/ε, so σ = σ₁/√2; no subsampling.

    A bound that needs no numerics, valid for ε < 2·ln(1/δ). Whatever `calibrate` returns is below it.
    """
    if not 0 < epsilon < 2 * math.log(1 / delta):
        raise ConfigurationError(
            f"The theorem holds for 0 < epsilon < 2·ln(1/delta) = {2 * math.log(1 / delta):.3g}, not for {epsilon}."
        )
    return 2 * math.sqrt(steps * math.log(1 / delta)) / epsilon


def _smallest_noise(
    epsilon_of: Callable[[float], float], target: float, low: float, high: float, guess: float, slope: float
) -> tuple[float, float]:
    """The smallest σ in (low, high] with epsilon_of(σ) ≤ target, and its ε: within 3e-4 of the target, never above it.

    ln ε is almost linear in ln σ, so steps along the latest secant (at first along `slope`) arrive in three or four
    queries. A step that leaves the bracket, and every step after the eighth, is a bisection.
    """
    aim = target * (1 - TOLERANCE / 2)
    sigma, previous, at_high = guess, None, math.nan
    for query in itertools.count(1):
        value = epsilon_of(sigma)
        if value <= target:
            high, at_high = sigma, value
        else:
            low = sigma
        if at_high >= target * (1 - TOLERANCE) or (high <= low * (1 + TOLERANCE / 10) and not math.isnan(at_high)):
            break
        if previous is not None and 0 < value < math.inf and 0 < previous[1] < math.inf:
            slope = math.log(value / previous[1]) / math.log(sigma / previous[0])
        previous = sigma, value
        sigma = sigma * (aim / value) ** (1 / slope) if slope < 0 < value < math.inf else low
        if query >= 8 or not low < sigma < high:
            sigma = math.sqrt(low * high) if high > low * (1 + TOLERANCE / 10) else high
    return high, at_high
