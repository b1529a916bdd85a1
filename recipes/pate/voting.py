"""Confident-GNMax: the noisy majority of the teachers' votes, where a noisy check finds it clear enough."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from random import SystemRandom

import numpy as np
from numpy.typing import NDArray

RANDOM = SystemRandom()
"""Noise from the operating system; with a known seed it would not protect anything."""


@dataclass(frozen=True)
class Voting:
    """`threshold` votes, with noise of deviation `check_noise`, open a query; its counts get noise of `vote_noise`.

    One record decides one teacher, whose vote moves from one class to another: the largest count moves by at most 1,
    the counts together by √2 in norm. So a check is a Gaussian mechanism with noise multiplier `check_noise`, an answer
    one with `vote_noise`/√2.
    """

    threshold: float
    check_noise: float
    vote_noise: float

    @property
    def cost_of_check(self) -> float:
        """μ² of Gaussian differential privacy (Dong, Roth and Su 2022), which adds up over mechanisms."""
        return self.check_noise**-2

    @property
    def cost_of_answer(self) -> float:
        """The same of an answer."""
        return 2 * self.vote_noise**-2


@dataclass(frozen=True)
class Answers:
    """The label of each query that was put to the teachers; None where their majority was not clear."""

    labels: list[int | None]

    @property
    def queries(self) -> int:
        """The number of queries."""
        return len(self.labels)

    @property
    def answered(self) -> list[int]:
        """Which of them have a label."""
        return [query for query, label in enumerate(self.labels) if label is not None]

    def cost(self, voting: Voting) -> float:
        """μ² of all checks and answers, whatever the votes were."""
        return self.queries * voting.cost_of_check + len(self.answered) * voting.cost_of_answer


def ask(votes: Iterable[NDArray[np.int64]], voting: Voting, budget: float) -> Answers:
    """Put one query after the other (counts by class) until another one could cost more than `budget` in μ².

    Guarantee: √budget-GDP for one record, although answers decide how many queries follow: a filter on the sum of μ² is
    valid for adaptively chosen Gaussian mechanisms (Smith and Thakurta 2022).
    """
    labels: list[int | None] = []
    spent = 0.0
    for counts in votes:
        if spent + voting.cost_of_check + voting.cost_of_answer > budget:
            break
        spent += voting.cost_of_check
        clear = counts.max() + RANDOM.gauss(0.0, voting.check_noise) >= voting.threshold
        if clear:
            spent += voting.cost_of_answer
        labels.append(_noisy_majority(counts, voting.vote_noise) if clear else None)
    return Answers(labels)


def _noisy_majority(counts: NDArray[np.int64], noise: float) -> int:
    return int(np.argmax([count + RANDOM.gauss(0.0, noise) for count in counts]))


def probability_of_another(counts: NDArray[np.int64], noise: float) -> float:
    """A bound on the chance that noise of this deviation makes another class win than the one with most votes."""
    winner = int(np.argmax(counts))
    others = np.delete(counts, winner)
    return min(1.0, sum(0.5 * math.erfc((int(counts[winner]) - int(count)) / (2 * noise)) for count in others))


def probability_of_an_answer(counts: NDArray[np.int64], voting: Voting) -> float:
    """The chance that the check finds the majority clear."""
    return 0.5 * math.erfc((voting.threshold - int(counts.max())) / (math.sqrt(2) * voting.check_noise))
