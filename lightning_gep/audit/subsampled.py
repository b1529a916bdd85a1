"""The ε of many subsampled Gaussian steps, from below, by Monte Carlo over their likelihood ratios.

Thresholds on scores cannot see a δ of 1e-6: too few runs have a score that tells. Here the privacy loss of a whole run
is drawn, the sum of the steps' log likelihood ratios, from a distribution tilted towards large losses, and
δ(ε) = E[max(0, 1 − e^(ε−L))] is estimated with a confidence bound that holds for any number of draws. No accountant is
involved, so a mistake in one shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.optimize import brentq, minimize_scalar

from lightning_gep.audit.estimators import Bound, Progress

CELLS, TAIL = 1024, 12.0
"""Cells of the score of a step, and how many standard deviations they reach beyond both means."""
PILOT_DRAWS, CHUNK = 2000, 1000
FIRST, STEP = 0.7, 0.0025
"""The values of ε tested: from this share of a pilot estimate upwards, in steps of this share."""
LARGEST_TILT = 500.0


@dataclass(frozen=True)
class StepLoss:
    """The privacy loss of one step: its values, and their log probabilities if the canary is in the data."""

    values: NDArray[np.float64]
    log_probabilities: NDArray[np.float64]

    @classmethod
    def of(cls, shifts: Sequence[float], sample_rate: float) -> "StepLoss":
        """Of a step that shifts part j of its release by `shifts[j]` standard deviations if it draws the canary.

        All parts are released on one draw, so their likelihood ratio depends on a single normal score: N(0, 1), or
        N(μ, 1) with μ² = Σ shifts² if drawn. The score is rounded to cells, which cannot raise δ (data processing).
        """
        mu = math.sqrt(math.fsum(shift**2 for shift in shifts))
        edges = np.linspace(-TAIL, mu + TAIL, CELLS + 1)
        absent, drawn = _cell_masses(edges), _cell_masses(edges - mu)
        with np.errstate(divide="ignore"):
            ratios = np.exp(np.log(drawn) - np.log(absent))
            # log1p: with q = 1e-3 the loss of most cells is close to 0.
            values = np.log1p(sample_rate * (ratios - 1))
            probabilities = np.log(absent) + values
        used = np.isfinite(values) & np.isfinite(probabilities)
        return cls(values[used], probabilities[used])

    def log_moment(self, tilt: float) -> float:
        """K(θ) = log E[e^(θℓ)]."""
        return float(special.logsumexp(self.log_probabilities + tilt * self.values))

    def tilted(self, tilt: float) -> NDArray[np.float64]:
        """Probabilities proportional to e^(θℓ) times the original ones."""
        weights = np.exp(self.log_probabilities + tilt * self.values - self.log_moment(tilt))
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class TiltedRuns:
    """Losses of whole runs drawn under a tilt, and what they say about δ(ε)."""

    losses: NDArray[np.float64]
    tilt: float
    log_moment: float
    """Of the run: steps · K(θ)."""

    @classmethod
    def draw(
        cls,
        step: StepLoss,
        steps: int,
        tilt: float,
        draws: int,
        generator: np.random.Generator,
        progress: Progress = lambda *_: None,
    ) -> "TiltedRuns":
        """Draw runs by how many of their steps fall into each cell, which takes as long for any number of steps."""
        losses, probabilities = np.empty(draws), step.tilted(tilt)
        for start in range(0, draws, CHUNK):
            size = min(CHUNK, draws - start)
            losses[start : start + size] = generator.multinomial(steps, probabilities, size) @ step.values
            progress("privacy loss of whole runs", (start + size) / draws)
        return cls(losses, tilt, steps * step.log_moment(tilt))

    def values(self, epsilon: float) -> NDArray[np.float64]:
        """Numbers whose mean is δ(ε): the likelihood ratio of the tilt, e^(TK − θL), times max(0, 1 − e^(ε−L))."""
        excess = self.losses - epsilon
        with np.errstate(over="ignore"):
            return np.where(excess > 0, np.exp(self.log_moment - self.tilt * self.losses) * -np.expm1(-excess), 0.0)

    def largest_value(self, epsilon: float) -> float:
        """No value is above it: e^(−θu)(1 − e^(−u)) is largest at e^(−u) = θ/(1 + θ)."""
        share = self.tilt / (1 + self.tilt)
        return math.exp(self.log_moment - self.tilt * epsilon) * share**self.tilt / (1 + self.tilt)

    def least_delta(self, epsilon: float, confidence: float) -> float:
        """A lower bound on δ(ε) by the empirical Bernstein inequality (Maurer and Pontil 2009, Theorem 4)."""
        values, level = self.values(epsilon), math.log(2 / (1 - confidence))
        spread = math.sqrt(2 * float(np.var(values, ddof=1)) * level / len(values))
        return float(np.mean(values)) - spread - 7 * self.largest_value(epsilon) * level / (3 * (len(values) - 1))


def subsampled_bound(
    shifts: Sequence[float],
    sample_rate: float,
    steps: int,
    delta: float,
    confidence: float = 0.95,
    draws: int = 20_000,
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> Bound:
    """The largest ε that a run with this δ is shown not to have, up to `confidence`.

    Values of ε are tested in increasing order until the first that is not refuted, which needs no correction for their
    number: whichever is the first that holds, it is refuted with probability 1 − `confidence` at most. Pilot draws
    choose the values and the tilt.

    Args:
        shifts: How far a canary that is drawn shifts each part of the release, in standard deviations of its noise.
        sample_rate: q.
        steps: Steps of the run.
        delta: δ.
        confidence: Of the bound.
        draws: Runs drawn.
        seed: Of the draws. The bound is about numbers, not about private data.
        progress: Told how far it is.

    """
    assumes = "Gaussian noise, Poisson sampling"
    generator = np.random.default_rng(seed)
    step = StepLoss.of(shifts, sample_rate)
    pilot = TiltedRuns.draw(step, steps, moments_tilt(step, steps, delta), PILOT_DRAWS, generator)
    if float(np.mean(pilot.values(0.0))) <= delta:
        return Bound("likelihood ratios", 0.0, confidence, assumes)
    high = float(pilot.losses.max())
    estimate = float(brentq(lambda epsilon: float(np.mean(pilot.values(epsilon))) - delta, 0.0, high))
    runs = TiltedRuns.draw(step, steps, tilt_for(step, steps, estimate), draws, generator, progress)
    shown = 0.0
    for candidate in estimate * np.arange(FIRST, 1.2, STEP):
        if runs.least_delta(candidate, confidence) <= delta:
            break
        shown = float(candidate)
    return Bound("likelihood ratios", shown, confidence, assumes)


def moments_tilt(step: StepLoss, steps: int, delta: float) -> float:
    """The order at which Rényi DP gives its best ε: a tilt whose mean loss is not far from the ε sought."""

    def epsilon(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return (steps * step.log_moment(tilt) - math.log(delta)) / tilt

    return math.exp(minimize_scalar(epsilon, bounds=(-5.0, math.log(LARGEST_TILT)), method="bounded").x)


def tilt_for(step: StepLoss, steps: int, loss: float) -> float:
    """The tilt under which a run has this mean loss."""

    def mean(tilt: float) -> float:
        return steps * float(step.tilted(tilt) @ step.values)

    low, high = 1e-3, LARGEST_TILT
    if mean(high) < loss:
        return high
    return low if mean(low) > loss else float(brentq(lambda tilt: mean(tilt) - loss, low, high))


def _cell_masses(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard normal masses between edges, each computed in the tail that keeps its digits."""
    low, high = edges[:-1], edges[1:]
    above = special.ndtr(-low) - special.ndtr(-high)
    return np.asarray(np.where(low > 0, above, special.ndtr(high) - special.ndtr(low)))
