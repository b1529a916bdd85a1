"""One release at q = 1: does a record that exceeds every threshold show more than the account claims?"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset
from typing_extensions import override

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.audit.canaries import Canaries, CanaryLoader
from lightning_gep.audit.estimators import Bound, Progress, Scores, gaussian_bound, gaussian_mu, threshold_bound
from lightning_gep.audit.fits import Attack, Seen, Subject, fit_with_canaries
from lightning_gep.audit.templates import separate_canaries, templates
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.strategy.strategy import GEPStrategy

RECORDS, CANARIES = 8, 400
"""Records of the user beside the canaries, all in every batch; and the most canaries."""
ACCURACY = 0.03
"""The standard error of the distance of the canaries' scores, as a share of it."""
FEWEST_SCORES, FEWEST_RELEASES = 4000, 40
"""Noise that repeats after fewer than half as many releases is found."""


@dataclass(frozen=True)
class Releases:
    """Scores (releases × canaries) of one fit, and which canaries were in at each release."""

    scores: Scores
    included: NDArray[np.bool_]
    plan: PrivacyPlan

    @property
    def sides(self) -> tuple[Scores, Scores]:
        """The scores of canaries that were in, and of those left out."""
        return self.scores[self.included], self.scores[~self.included]

    def without_repeated_noise(self) -> "Releases":
        """Scores of half of the canaries, minus what the noise of an earlier release says about theirs.

        The other half tells which earlier release says most. Noise that is fresh at every step leaves nothing to
        subtract; noise that repeats leaves the canaries bare.
        """
        if self.scores.shape[1] == 1:
            return self
        noise = self.scores - self.included / self.plan.release.noise_multiplier
        learn, test = noise[:, ::2], slice(1, None, 2)
        lags = np.arange(1, len(noise) // 2)
        slopes = np.array([(learn[lag:] * learn[:-lag]).sum() / np.square(learn[:-lag]).sum() for lag in lags])
        best = int(np.argmax(np.abs(slopes)))
        lag = lags[best]
        scores = self.scores[lag:, test] - slopes[best] * noise[:-lag, test]
        return Releases(scores, self.included[lag:, test], self.plan)

    def bounds(self, delta: float, confidence: float) -> list[Bound]:
        """Three lower bounds on the ε of one release."""
        repeated = gaussian_bound(*self.without_repeated_noise().sides, delta, confidence)
        return [
            gaussian_bound(*self.sides, delta, confidence),
            Bound("Gaussian, earlier noise", repeated.epsilon, confidence, repeated.assumes),
            threshold_bound(*self.sides, delta, confidence),
        ]

    def scale(self, confidence: float) -> float:
        """A lower bound on how far a canary shifts its score, as a share of the 1/σ that the account assumes."""
        return gaussian_mu(*self.sides, confidence) * self.plan.release.noise_multiplier


def releases(
    subject: Subject,
    noise_multiplier: float,
    *,
    accuracy: float = ACCURACY,
    canaries: int = CANARIES,
    progress: Progress = lambda *_: None,
) -> Releases:
    """Release after release of one fit at q = 1, with frozen weights and a few of the user's records in every batch."""
    scores = max(FEWEST_SCORES, math.ceil((2 * noise_multiplier / accuracy) ** 2))
    data: Any = subject.train_loader.dataset
    records = Subset(data, range(min(RECORDS, len(data))))
    noise = {"epsilon": None, "noise_multiplier": noise_multiplier, "accountant": "rdp", "delta": 1e-6}
    strategy = subject.strategy(**noise)
    canaries = min(canaries, _room(strategy, subject))
    steps = 1 + max(FEWEST_RELEASES, -(-scores // canaries))
    strategy = subject.strategy(**noise, refresh_every=10 * steps)
    attack = _CoinsAtEveryStep(Canaries(canaries), f"{strategy.settings.mechanism}: {steps} releases", progress)
    loader = CanaryLoader(subject.train_loader, canaries, records, len(records) + canaries, steps)
    fit_with_canaries(subject, strategy, loader, attack, frozen=True, max_steps=steps, max_epochs=-1)
    return attack.outcome()


def _room(strategy: GEPStrategy, subject: Subject) -> int:
    """How many canaries fit beside each other, inside the subspace and outside of it."""
    parameters = ParameterGroups.from_module(subject.module, strategy.cost.groups).num_parameters
    k = strategy.settings.k
    if not strategy.settings.uses_basis or k == "auto":
        return parameters
    return min(k, max(1, parameters - k)) if strategy.settings.mechanism == "gep" else k


class _CoinsAtEveryStep(Attack):
    """At each step a coin decides for every canary whether it is in.

    The basis of the first step, in which there are no canaries yet, is kept: canaries are chosen for it so that none
    adds to another's score.
    """

    looked_for: Tensor | None = None
    plan: PrivacyPlan

    @override
    def before_step(self) -> None:
        self.canaries.included = torch.randint(0, 2, (len(self.canaries),)).float()

    @override
    def read(self, seen: Seen) -> None:
        if self.looked_for is None:
            chosen = separate_canaries(len(self.canaries), seen.basis, seen.plan.release)
            self.canaries.use(chosen)
            self.looked_for, self.plan = templates(chosen, seen.basis, seen.plan.release), seen.plan
            self._scores: list[Tensor] = []
            self._coins: list[Tensor] = []
            return
        self._scores.append(self.looked_for @ seen.noisy_sum)
        self._coins.append(self.canaries.included[: len(self.looked_for)].bool())

    def outcome(self) -> Releases:
        """What was seen, apart from the first step."""
        return Releases(torch.stack(self._scores).numpy(), torch.stack(self._coins).numpy(), self.plan)
