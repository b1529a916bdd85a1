"""End to end: a whole training with canaries in the data, each by the toss of a coin, and guesses which were in."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.audit.canaries import Canaries, CanaryLoader
from lightning_gep.audit.estimators import Bound, Progress, Scores, clopper_pearson, one_run_bounds
from lightning_gep.audit.fits import Attack, Seen, Subject, fit_with_canaries
from lightning_gep.audit.templates import random_canaries, templates
from lightning_gep.privacy.plan import PrivacyPlan

CANARIES = 500
MOST_NUMBERS = 50_000_000
"""Canaries × parameters that are held in memory."""


@dataclass(frozen=True)
class Training:
    """The scores of the canaries of one run or several, which of them were in the data, and how often one was drawn."""

    scores: Scores
    included: NDArray[np.bool_]
    draws: int
    plan: PrivacyPlan
    steps: int

    def bounds(self, delta: float, confidence: float) -> list[Bound]:
        """Lower bounds on ε that assume nothing about steps, sampling or noise."""
        return one_run_bounds(self.scores, self.included, delta, confidence)

    def sample_rate(self, confidence: float) -> float:
        """A lower bound on the probability with which a step draws a record."""
        return clopper_pearson(self.draws, len(self.scores) * self.steps, 1 - confidence, upper=False)


def train_with_canaries(
    subject: Subject, *, canaries: int = CANARIES, runs: int = 1, progress: Progress = lambda *_: None
) -> Training:
    """Train as configured, at the same sampling rate, with canaries beside the user's records.

    Several runs are short cuts to more canaries: each has its own, and its own coins.
    """
    parameters = ParameterGroups.from_module(subject.module, subject.settings.get("groups", "balanced")).num_parameters
    canaries = min(canaries, max(1, MOST_NUMBERS // parameters))
    loader = subject.train_loader
    records: int = len(loader.dataset)  # type: ignore[arg-type]
    batch = max(1, round((loader.batch_size or 1) * (records + canaries) / records))
    found = []
    for run in range(runs):
        strategy = subject.strategy()
        name = f"{strategy.settings.mechanism}: training" + (f" {run + 1} of {runs}" if runs > 1 else "")
        attack = _CoinsOfTheRun(Canaries(canaries), name, progress)
        with_canaries = CanaryLoader(loader, canaries, loader.dataset, batch)
        fit_with_canaries(subject, strategy, with_canaries, attack, frozen=False)
        assert strategy.privacy is not None
        found.append((attack, strategy.privacy))
    account = found[0][1]
    return Training(
        np.concatenate([attack.scores.numpy() for attack, _ in found]),
        np.concatenate([attack.canaries.included.bool().numpy() for attack, _ in found]),
        sum(attack.draws for attack, _ in found),
        account.plan,
        account.steps,
    )


class _CoinsOfTheRun(Attack):
    """Coins decide before the run which canaries are in the data; the scores of all releases are added up."""

    gradients: Tensor
    scores: Tensor

    @override
    def choose_canaries(self, groups: ParameterGroups, plan: PrivacyPlan) -> None:
        self.canaries.included = torch.randint(0, 2, (len(self.canaries),)).float()
        self.gradients = random_canaries(len(self.canaries), groups.num_parameters, plan.release)
        self.canaries.use(self.gradients)
        self.scores = torch.zeros(len(self.canaries), dtype=torch.float64)

    @override
    def read(self, seen: Seen) -> None:
        self.scores += templates(self.gradients, seen.basis, seen.plan.release) @ seen.noisy_sum
