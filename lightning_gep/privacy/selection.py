"""What it costs to train several times on the same records and keep the best: nothing about that is free.

Two ways to count. A list of runs fixed beforehand is a composition: whoever looks at all of them to choose has seen all
of them. If instead the *number* of runs is drawn at random and only the best leaves, `repetitions` has the cost.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightning_gep.arguments import one_of
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import LARGEST_TIGHT_EPSILON, History, SampledGaussian, epsilon
from lightning_gep.privacy.repetitions import (
    REPETITION_CONDITIONS,
    SYSTEM_RANDOM,
    Candidate,
    distribution_name,
    draw_repetitions,
    repeat_and_select_cost,
    shape_of,
)
from lightning_gep.privacy.rounding import Figure, shown, shown_delta, shown_epsilon

__all__ = [
    "SYSTEM_RANDOM",
    "Candidate",
    "composed_cost",
    "draw_repetitions",
    "repeat_and_select_cost",
    "single_selection",
    "sweep_selection",
]

Card = Mapping[str, Any]

MOST_EVENTS = 48
"""Different events beyond which they are merged: each costs an accountant's work of its own."""
ENDED = ("finished", "stopped")

SINGLE_CONDITIONS = (
    "Choices made by looking at other runs on the same records are not included: such runs cost their own ε.",
)
COMPOSITION_CONDITIONS = (
    "These are all the runs that were made on the records; others cost their own ε on top.",
    "Noise, sampling rate and length of each run were settled without looking at the results of other runs.",
    "The choice looked at the released weights, or at records that no run was trained on: a record that validates one "
    "run and trains another is not protected where it validates.",
)


def composed_cost(histories: Iterable[History], delta: float, accountant: str = "pld") -> float:
    """ε at δ of releasing everything in all `histories`, an upper bound; ∞ if any step of any run had no noise.

    Equal events are counted together. Where more than 48 different ones remain, near ones are merged into one that
    costs at least as much as each of them: σ is lowered and q is raised, a little at first, until few enough remain.
    A smaller σ costs no less, because noise can be added afterwards. Nor does a larger q′: sampling at rate q is
    sampling at q′ with probability q/q′ and leaving the record out otherwise, and divergences are jointly convex.
    """
    return _composed(histories, delta, accountant)[0]


def single_selection(figure: Figure, delta: float, accountant: str, *, complete: bool) -> dict[str, Any]:
    """The selection block of one run on its own."""
    return {
        "runs": 1,
        "rule": "single",
        "epsilon": figure,
        "delta": delta,
        "accountant": accountant,
        "explanation": "One run, counted on its own. If it was chosen by looking at other runs on the same records, "
        "those cost too, and they are not included here.",
        "complete": complete,
        "conditions": list(SINGLE_CONDITIONS),
    }


def sweep_selection(
    cards: Sequence[Card | None],
    *,
    rule: str = "composition",
    repetitions: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The selection block for a sweep from the cards of its runs, None for a run that has none.

    A run without a card is not counted, and the sweep is then not complete. `rule` is "composition" (also called
    "grid") or "repeat_and_select". The latter takes `repetitions` with "mean" and "shape" or "distribution", and
    "candidates" if settings could be drawn that no run has: a list of {"sample_rate", "noise_multiplier", "steps"}.

    ε is at the smallest δ of the runs, so it holds at each run's own. A run that has not ended counts as long as it
    was planned. With "repeat_and_select" the number of runs is left out of the block: the block goes with the selected
    run, and the figure holds only while that number is unknown.
    """
    one_of("rule", rule, ("composition", "grid", "repeat_and_select"))
    known = [card for card in cards if card is not None]
    if not known:
        raise ConfigurationError("There is no card of any run, so nothing can be counted. Train at least one run.")
    delta = min(float(card["guarantee"]["delta"]) for card in known)
    complete = len(known) == len(cards) and all(card["status"] in ENDED for card in known)
    not_private = sum(not card["guarantee"]["private"] for card in known)
    if rule == "repeat_and_select":
        return _repetition_block(known, repetitions, delta, complete, not_private)
    names = {card["guarantee"]["accountant"] for card in known}
    accountant = names.pop() if len(names) == 1 else "pld"
    total, accountant = (
        (math.inf, accountant) if not_private else _composed([_history(card) for card in known], delta, accountant)
    )
    return {
        "runs": len(cards),
        "rule": "composition",
        "epsilon": _figure(total),
        "delta": delta,
        "accountant": accountant,
        "explanation": _composition_words(len(cards), len(known), total, delta, accountant, complete, not_private),
        "complete": complete,
        "conditions": list(COMPOSITION_CONDITIONS),
    }


def _composition_words(
    runs: int, known: int, total: float, delta: float, accountant: str, complete: bool, not_private: int
) -> str:
    count = "1 run" if runs == 1 else f"{runs} runs on the same records"
    if not_private:
        words = f"{count}; {not_private} of them not private, so neither is what was picked from them."
    elif math.isinf(total):
        words = f"{count}; {accountant.upper()} proves no finite ε for them together."
    else:
        picked = "" if runs == 1 else "if the best was chosen, all of them were paid for: "
        words = (
            f"{count}; {picked}ε = {shown_epsilon(total)} at δ = {shown_delta(delta)} by composition "
            f"({accountant.upper()})."
        )
    if complete:
        return words
    missing = f" {runs - known} of them left no card and are not in this figure." if known < runs else ""
    return f"{words} Not all runs have ended; those that have not count as long as they were planned.{missing}"


def _repetition_block(
    cards: Sequence[Card], repetitions: Mapping[str, Any] | None, delta: float, complete: bool, not_private: int
) -> dict[str, Any]:
    if repetitions is None or "mean" not in repetitions or not {"shape", "distribution"} & repetitions.keys():
        raise ConfigurationError(
            f"rule='repeat_and_select' needs the distribution that the number of runs was drawn from, but "
            f"repetitions={repetitions!r}. Give {{'mean': ..., 'shape': ...}}, or use rule='composition'."
        )
    mean, shape = float(repetitions["mean"]), shape_of(repetitions.get("shape", repetitions.get("distribution")))
    name = distribution_name(shape)
    # What a run may cost counts, not what it did: one that ended early could have gone on.
    drawn = [Candidate(_event(card), max(_steps(card), _planned(card))) for card in cards]
    listed = [c for c in repetitions.get("candidates") or () if isinstance(c, Mapping)]
    others = [
        Candidate(SampledGaussian(float(c["sample_rate"]), float(c["noise_multiplier"])), int(c["steps"]))
        for c in listed
    ]
    # δ of what could be drawn, where it is known: that of the runs drawn would tell which they were.
    delta = min([float(c["delta"]) for c in listed if "delta" in c], default=delta)
    not_private += sum(not c.get("private", True) for c in listed)
    total = math.inf if not_private else repeat_and_select_cost(drawn + others, delta, mean=mean, shape=shape)
    if not_private:
        words = "At least one of the runs is not private, so neither is what was picked from them."
    else:
        words = (
            f"The number of runs was drawn at random beforehand ({name}, mean {shown(mean)}) and only the selected run "
            f"leaves: ε = {shown_epsilon(total)} at δ = {shown_delta(delta)} for having picked it (Papernot and "
            "Steinke 2022, by RDP). How many runs there were is left out on purpose."
        )
        if not others:
            words += " Counted from the settings that were drawn; it holds if no other on the list costs more."
    return {
        "runs": None,
        "rule": "repeat_and_select",
        "epsilon": _figure(total),
        "delta": delta,
        "accountant": "rdp",
        "explanation": words if complete else f"{words} Not all runs have ended.",
        "complete": complete,
        "conditions": list(REPETITION_CONDITIONS),
        "repetitions": {
            "mean": mean,
            "shape": _figure(shape),
            "distribution": name,
            "all_candidates_counted": bool(others),
        },
    }


def _composed(histories: Iterable[History], delta: float, accountant: str) -> tuple[float, str]:
    """ε, and the accountant that it comes from: RDP's takes the place of a tight one where ε is large."""
    total = epsilon(_merged([pair for history in histories for pair in history]), delta, accountant)
    return total, "rdp" if total > LARGEST_TIGHT_EPSILON and math.isfinite(total) else accountant


def _merged(history: History) -> History:
    """A history that costs at least as much, of few different events."""
    exact = _counted(history)
    merged, ratio = exact, 1.001
    while len(merged) > MOST_EVENTS and ratio < 1e6:
        ratio = 1 + 1.4 * (ratio - 1)
        merged = _counted((_costlier(event, ratio), steps) for event, steps in exact)
    return merged


def _counted(history: Iterable[tuple[SampledGaussian, int]]) -> History:
    counts: dict[SampledGaussian, int] = {}
    for event, steps in history:
        if steps > 0:
            counts[event] = counts.get(event, 0) + steps
    return list(counts.items())


def _costlier(event: SampledGaussian, ratio: float) -> SampledGaussian:
    """The event with σ lowered and q raised to powers of `ratio`; without noise σ stays 0."""
    rate = ratio ** math.ceil(math.log(event.sample_rate, ratio))
    sigma = event.noise_multiplier and ratio ** math.floor(math.log(event.noise_multiplier, ratio))
    # Logarithms round: whatever they say, the event must not become cheaper.
    return SampledGaussian(min(1.0, max(rate, event.sample_rate)), min(sigma, event.noise_multiplier))


def _event(card: Card) -> SampledGaussian:
    return SampledGaussian(float(card["sampling"]["sample_rate"]), float(card["mechanism"]["noise_multiplier"]))


def _history(card: Card) -> History:
    return [(_event(card), _steps(card) if card["status"] in ENDED else max(_steps(card), _planned(card)))]


def _steps(card: Card) -> int:
    return int(card["steps"]["counted"])


def _planned(card: Card) -> int:
    return int(card["steps"]["planned"] or 0)


def _figure(value: float) -> float | str:
    """A number as a card holds it."""
    return "inf" if math.isinf(value) else value
