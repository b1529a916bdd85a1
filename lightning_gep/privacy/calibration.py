"""From a target ε to the noise that keeps it: `calibrate`, usable without any training."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from lightning_gep.arguments import finite_positive, one_of, positive_integer
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import SampledGaussian, check_delta, epsilon, make_accountant
from lightning_gep.privacy.release import Clipping, Release
from lightning_gep.privacy.variants import BGEP, GEP, GP, MECHANISMS, Mechanism, Split

SMALLEST_NOISE, LARGEST_NOISE = 0.01, 1e4
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
                "Give them, or use split='equal'.",
                setting="split",
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
            "one part only. Use clipping='separate'.",
            setting="clipping",
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

    by_rdp = after("rdp")
    at_largest = by_rdp(LARGEST_NOISE)
    if at_largest > epsilon:
        raise ConfigurationError(
            f"epsilon={epsilon} with delta={delta} over {steps} steps at sampling rate {sample_rate:.3g} cannot be "
            f"reached: even a noise multiplier of {LARGEST_NOISE:.0f} gives more. Raise epsilon or delta, or "
            "train for fewer steps.",
            setting="epsilon",
        )
    high = LARGEST_NOISE, at_largest
    sigma, spent = _smallest_noise(by_rdp, epsilon, SMALLEST_NOISE, high, guess=1.0, slope=-1.0, queries=60)
    if accountant == "rdp":
        return sigma, spent
    guess = 0.94 * sigma
    slope = _secant_slope((guess, by_rdp(guess)), (sigma, spent)) or -1.0
    # The tight accountants never give more than RDP, so its σ is a first answer; what they give there is not asked.
    unknown = -math.inf
    tight = _smallest_noise(
        after(accountant), epsilon, SMALLEST_NOISE, (sigma, unknown), guess=guess, slope=slope, queries=10
    )
    return (sigma, spent) if tight[1] == unknown else tight


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
    epsilon_of: Callable[[float], float],
    target: float,
    low: float,
    high: tuple[float, float],
    guess: float,
    slope: float,
    queries: int,
) -> tuple[float, float]:
    """The smallest σ above `low` with epsilon_of(σ) ≤ target, and its ε; `high` is such a pair to begin with.

    ln ε is almost linear in ln σ, so steps along the latest secant (at first along `slope`) come within 3e-4 of the
    target in a few queries; a step that leaves the bracket becomes a bisection. Only pairs whose ε is at or below the
    target are ever returned, so the limit on the queries costs noise at worst, never privacy.
    """
    (best, at_best), sigma = high, guess
    for _ in range(queries):
        if at_best >= target * (1 - TOLERANCE) or best <= low * (1 + TOLERANCE / 10):
            break
        if not low < sigma < best:
            sigma = math.sqrt(low * best)
        value = epsilon_of(sigma)
        slope = _secant_slope((sigma, value), (best, at_best)) or slope
        if value <= target:
            best, at_best = sigma, value
        else:
            low = sigma
        sigma = _along(slope, sigma, value, target * (1 - TOLERANCE / 2))
    return best, at_best


def _secant_slope(one: tuple[float, float], other: tuple[float, float]) -> float | None:
    """Slope of ln ε over ln σ through two points, or None where that tells nothing."""
    (sigma, value), (other_sigma, other_value) = one, other
    if not (0 < value < math.inf and 0 < other_value < math.inf) or sigma == other_sigma:
        return None
    slope = math.log(value / other_value) / math.log(sigma / other_sigma)
    return slope if -20 < slope < -0.05 else None


def _along(slope: float, sigma: float, value: float, aim: float) -> float:
    """Where a line of that slope through (σ, ε) meets `aim`; outside every bracket where there is no such line."""
    if not 0 < value < math.inf:
        return math.inf
    return sigma * math.exp(max(-50.0, min(50.0, math.log(aim / value) / slope)))
