"""What it costs to train several runs on the same records and keep the best one.

There are two ways to count. Runs listed in advance compose: whoever compares all of them has seen all of them. If
instead the *number* of runs is drawn at random and only the best is published, `repetitions` has the smaller cost.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_gep.arguments import one_of
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import LARGEST_TIGHT_EPSILON, History, SampledGaussian, epsilon
from lightning_gep.privacy.ledger import LedgerContent
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.repetitions import REPETITION_CONDITIONS, Distribution, repeat_and_select_cost
from lightning_gep.privacy.rounding import Figure, figure, shown, shown_delta, shown_epsilon

MOST_EVENTS = 48
"""With more distinct events than this, similar ones are merged: the accountant's work grows with their number."""

SINGLE_CONDITIONS = ("Choices based on other runs on the same records are not included: those runs cost their own ε.",)
COMPOSITION_CONDITIONS = (
    "These are all the runs on the records; any other run adds its own ε.",
    "The noise, sampling rate and length of each run were fixed without looking at the results of other runs.",
    "The choice was based on the released weights, or on records that no run was trained on. A record that validates "
    "one run and trains another is not protected in its validation role.",
)


@dataclass(frozen=True)
class RunCost:
    """What one run cost, and may still cost: all that counting a selection needs.

    Args:
        event: The cost of one step.
        steps: Steps released so far.
        planned_steps: Steps of the whole run, if known.
        delta: The run's δ.
        accountant: The run's accountant.
        private: Whether the run has a guarantee at all.
        ended: Whether no further step will be released.

    """

    event: SampledGaussian
    steps: int
    planned_steps: int | None = None
    delta: float = 1.0
    accountant: str = "pld"
    private: bool = True
    ended: bool = True

    @property
    def longest(self) -> int:
        """Steps that the run has released or was planned to release, whichever is larger."""
        return max(self.steps, self.planned_steps or 0)

    @property
    def history(self) -> History:
        """What has to be paid for. A run that has not ended counts as long as it was planned."""
        return [(self.event, self.steps if self.ended else self.longest)]

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> "RunCost":
        """The cost of a run from its privacy card."""
        guarantee, steps = card["guarantee"], card["steps"]
        return cls(
            SampledGaussian(float(card["sampling"]["sample_rate"]), float(card["mechanism"]["noise_multiplier"])),
            steps=int(steps["counted"]),
            planned_steps=steps["planned"],
            delta=float(guarantee["delta"]),
            accountant=guarantee["accountant"],
            private=guarantee["private"],
            ended=card["status"] in ("finished", "stopped"),
        )

    @classmethod
    def from_ledger(cls, content: LedgerContent, *, private: bool, ended: bool) -> "RunCost":
        """The cost of a run from its ledger, which holds its plan and every release, but not whether it is private."""
        plan = PrivacyPlan.from_state(content.parameters["plan"])
        return cls(plan.event, content.count, plan.planned_steps, plan.delta, plan.accountant, private, ended)

    @classmethod
    def without_privacy(cls, steps: int, *, ended: bool) -> "RunCost":
        """The cost of a run that trained on the records without any privacy mechanism."""
        return cls(SampledGaussian(1.0, 0.0), steps, private=False, ended=ended)


def composed_cost(histories: Iterable[History], delta: float, accountant: str = "pld") -> float:
    """ε at δ of releasing everything in all `histories`: an upper bound, ∞ if any step of any run had no noise.

    Equal events are counted together. If more than 48 distinct ones remain, similar events are merged into one that
    costs at least as much as each of them, by lowering σ and raising q: a smaller σ costs no less, because noise can
    be added afterwards. Nor does a larger rate q′: sampling at rate q is sampling at q′ with probability q/q′ and
    leaving the record out otherwise, and divergences are jointly convex.
    """
    return epsilon(_merged([pair for history in histories for pair in history]), delta, accountant)


def single_selection(spent: Figure, delta: float, accountant: str, *, complete: bool) -> dict[str, Any]:
    """The selection block of the card of a single run."""
    return {
        "runs": 1,
        "rule": "single",
        "epsilon": spent,
        "delta": delta,
        "accountant": accountant,
        "explanation": "One run, counted on its own. If it was chosen by comparing it with other runs on the same "
        "records, those cost too, and they are not included here.",
        "complete": complete,
        "conditions": list(SINGLE_CONDITIONS),
    }


def sweep_selection(
    costs: Sequence[RunCost | None], *, rule: str = "composition", repetitions: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The selection block of a sweep's card.

    ε is given at the smallest δ of the runs, so it holds at each run's own δ. A run that has not ended counts as long
    as it was planned. With "repeat_and_select" the block does not say how many runs there were: it is published with
    the selected run, and its ε holds only while that number is unknown.

    Args:
        costs: One per run; None for a job that has released nothing, which makes the sweep incomplete.
        rule: "composition" (also called "grid") or "repeat_and_select".
        repetitions: For "repeat_and_select": "mean" and "shape" or "distribution" of the number of runs, and
            "candidates" if settings could be drawn that no run has: {"sample_rate", "noise_multiplier", "steps"} each.

    Raises:
        ConfigurationError: If no run has released anything, or the distribution of the number of runs is missing.

    """
    one_of("rule", rule, ("composition", "grid", "repeat_and_select"))
    known = [cost for cost in costs if cost is not None]
    if not known:
        raise ConfigurationError("No run has released anything, so there is nothing to count. Train at least one run.")
    complete = len(known) == len(costs) and all(cost.ended for cost in known)
    if rule == "repeat_and_select":
        return _repetition_block(known, repetitions or {}, complete)
    delta = min(cost.delta for cost in known)
    not_private = sum(not cost.private for cost in known)
    names = {cost.accountant for cost in known}
    accountant = names.pop() if len(names) == 1 else "pld"
    total = math.inf if not_private else composed_cost([cost.history for cost in known], delta, accountant)
    if LARGEST_TIGHT_EPSILON < total < math.inf:
        accountant = "rdp"  # where ε is this large, the tight accountants return its bound
    return {
        "runs": len(costs),
        "rule": "composition",
        "epsilon": figure(total),
        "delta": delta,
        "accountant": accountant,
        "explanation": _composition_words(len(costs), len(known), total, delta, accountant, complete, not_private),
        "complete": complete,
        "conditions": list(COMPOSITION_CONDITIONS),
    }


def _composition_words(
    runs: int, known: int, total: float, delta: float, accountant: str, complete: bool, not_private: int
) -> str:
    words = "1 run; " if runs == 1 else f"{runs} runs on the same records; "
    if not_private:
        words += f"{not_private} of them not private, so neither is what was picked from them."
    elif math.isinf(total):
        words += f"{accountant.upper()} proves no finite ε for them together."
    else:
        words += "" if runs == 1 else "if the best was chosen, all of them were paid for: "
        words += f"ε = {shown_epsilon(total)} at δ = {shown_delta(delta)} by composition ({accountant.upper()})."
    if not complete:
        words += " Not all runs have ended; those that have not count as long as they were planned."
    if known < runs:
        words += f" {runs - known} of them released nothing so far and are not in this figure."
    return words


def _repetition_block(costs: Sequence[RunCost], repetitions: Mapping[str, Any], complete: bool) -> dict[str, Any]:
    distribution = Distribution.from_mapping(repetitions)
    listed = [c for c in repetitions.get("candidates") or () if isinstance(c, Mapping)]
    others = [(SampledGaussian(float(c["sample_rate"]), float(c["noise_multiplier"])), int(c["steps"])) for c in listed]
    # What a run may cost counts, not what it did cost: one that stopped early could have continued.
    drawn = [(cost.event, cost.longest) for cost in costs]
    # The δ of what could be drawn, where it is known: the δ of the runs drawn would reveal which they were.
    delta = min([float(c["delta"]) for c in listed if "delta" in c], default=min(cost.delta for cost in costs))
    private = all(cost.private for cost in costs) and all(c.get("private", True) for c in listed)
    total = repeat_and_select_cost(drawn + others, delta, distribution) if private else math.inf
    if not private:
        words = "At least one of the runs is not private, so neither is what was picked from them."
    else:
        words = (
            f"The number of runs was drawn at random in advance ({distribution.name}, mean {shown(distribution.mean)}) "
            f"and only the selected run is published: ε = {shown_epsilon(total)} at δ = {shown_delta(delta)} for "
            "having picked it (Papernot and Steinke 2022, by RDP). The number of runs is deliberately not stated."
        )
        if not others:
            words += " Counted from the settings that were drawn; valid if no other setting on the list costs more."
    return {
        "runs": None,
        "rule": "repeat_and_select",
        "epsilon": figure(total),
        "delta": delta,
        "accountant": "rdp",
        "explanation": words if complete else f"{words} Not all runs have ended.",
        "complete": complete,
        "conditions": list(REPETITION_CONDITIONS),
        "repetitions": {
            "mean": distribution.mean,
            "shape": figure(distribution.shape),
            "distribution": distribution.name,
            "all_candidates_counted": bool(others),
        },
    }


def _merged(history: History) -> History:
    """A history that costs at least as much, with few distinct events."""
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
    # Logarithms round; the event must not become cheaper because of that.
    return SampledGaussian(min(1.0, max(rate, event.sample_rate)), min(sigma, event.noise_multiplier))
