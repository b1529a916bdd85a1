"""The privacy cost of the teachers' answers: for any votes, and for the given votes."""

import math
from collections.abc import Sequence

import dp_accounting
import numpy as np
from dp_accounting.rdp import compute_epsilon
from numpy.typing import NDArray

from recipes.pate.voting import Answers, Voting, probability_of_an_answer, probability_of_another

ORDERS = np.concatenate([np.arange(2, 64), np.arange(64, 512, 8)]).astype(float)


def epsilon_of(budget: float, delta: float) -> float:
    """ε of √budget-Gaussian differential privacy: many Gaussian mechanisms are one, whose μ² is the sum of theirs."""
    return float(dp_accounting.get_epsilon_gaussian(budget**-0.5, delta)) if budget else 0.0


def budget_for(epsilon: float, delta: float) -> float:
    """The μ² that costs ε."""
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) ** -2


def data_dependent_epsilon(answers: Answers, votes: Sequence[NDArray[np.int64]], voting: Voting, delta: float) -> float:
    """ε for the given votes: smaller where teachers agree, but itself a function of private records.

    It cannot be published as it is; releasing it would take a mechanism of its own (Papernot et al. 2018, section B).
    """
    total = np.zeros_like(ORDERS)
    for label, counts in zip(answers.labels, votes, strict=False):
        answer = probability_of_an_answer(counts, voting)
        # A check has a sensitivity of 1 where the votes have √2, so it is like votes with √2 of its noise.
        total += gaussian_rdp(min(answer, 1 - answer), math.sqrt(2) * voting.check_noise)
        if label is not None:
            total += gaussian_rdp(probability_of_another(counts, voting.vote_noise), voting.vote_noise)
    return float(compute_epsilon(ORDERS, total, delta)[0]) if len(answers.labels) else 0.0


def gaussian_rdp(rare: float, noise: float) -> NDArray[np.float64]:
    """Rényi divergence at ORDERS of an outcome decided by counts with noise, all others at most as likely as `rare`.

    The smaller of λ/σ², which always holds, and theorem 6 of Papernot et al. (2018) with the orders of their
    proposition 10, where its conditions are met.
    """
    always = ORDERS / noise**2
    if not 0 < rare < 1:
        return np.zeros_like(always) if rare == 0 else always
    log_rare = math.log(rare)
    higher = noise * math.sqrt(-log_rare)
    high = higher + 1
    if higher <= 1:
        return always
    epsilon_high, epsilon_higher = high / noise**2, higher / noise**2
    most = (higher - 1) * epsilon_higher - higher * (math.log(high / (high - 1)) + math.log(higher / (higher - 1)))
    if log_rare > most:
        return always
    rest = math.log1p(-rare)
    log_a = rest - math.log1p(-math.exp((log_rare + epsilon_higher) * (1 - 1 / higher)))
    log_b = epsilon_high - log_rare / (high - 1)
    bound = np.logaddexp(rest + (ORDERS - 1) * log_a, log_rare + (ORDERS - 1) * log_b) / (ORDERS - 1)
    return np.where(high >= ORDERS, np.minimum(bound, always), always)
