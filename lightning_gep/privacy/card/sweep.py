"""What several runs on the same records cost together, as cards state it: the selection block, and a sweep's card."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import LARGEST_TIGHT_EPSILON, SampledGaussian
from lightning_gep.privacy.card.content import FORMAT, selection_block, terms
from lightning_gep.privacy.card.rendering import Card, sentence
from lightning_gep.privacy.files import now
from lightning_gep.privacy.rounding import figure
from lightning_gep.privacy.selection import (
    MOST_EVENTS,
    SHAPES,
    Distribution,
    RunCost,
    composed_cost,
    repeat_and_select_cost,
)


def sweep_selection(costs: Sequence[RunCost | None], *, repetitions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The selection block of a sweep's card: of all runs composed or, with `repetitions`, of repeat and select.

    ε is given at the smallest δ of the runs, so it holds at each run's own δ. A run that has not ended counts as long
    as it was planned. With `repetitions` the block does not say how many runs there were: it is published with the
    selected run, and its ε holds only while that number is unknown.

    Args:
        costs: One per run; None for a job that has released nothing, which makes the sweep incomplete.
        repetitions: "mean" and "distribution" of the number of runs, and "candidates" if settings could be drawn that
            no run has: {"sample_rate", "noise_multiplier", "steps"} each.

    Raises:
        ConfigurationError: If no run has released anything.

    """
    known = [cost for cost in costs if cost is not None]
    if not known:
        raise ConfigurationError("No run has released anything, so there is nothing to count. Train at least one run.")
    complete = len(known) == len(costs) and all(cost.ended for cost in known)
    if repetitions is not None:
        return _repeated(known, repetitions, complete)
    delta = min(cost.delta for cost in known)
    not_private = sum(not cost.private for cost in known)
    names = {cost.accountant for cost in known}
    accountant = names.pop() if len(names) == 1 else "pld"
    total = math.inf if not_private else composed_cost([cost.history for cost in known], delta, accountant)
    if LARGEST_TIGHT_EPSILON < total < math.inf or len({cost.event for cost in known}) > MOST_EVENTS:
        accountant = "rdp"  # where ε is this large or events are this many, its bound is returned
    return selection_block(
        "composition",
        figure(total),
        runs=len(costs),
        delta=delta,
        accountant=accountant,
        complete=complete,
        facts={"not_private": not_private, "missing": len(costs) - len(known)},
    )


def _repeated(costs: Sequence[RunCost], repetitions: Mapping[str, Any], complete: bool) -> dict[str, Any]:
    name = repetitions["distribution"]
    distribution = Distribution(float(repetitions["mean"]), SHAPES[name])
    listed = repetitions.get("candidates") or ()
    others = [(SampledGaussian(float(c["sample_rate"]), float(c["noise_multiplier"])), int(c["steps"])) for c in listed]
    # What a run may cost counts, not what it did cost: one that stopped early could have continued.
    drawn = [(cost.event, cost.longest) for cost in costs]
    # The δ of what could be drawn, where it is known: the δ of the runs drawn would reveal which they were.
    delta = min([float(c["delta"]) for c in listed if "delta" in c], default=min(cost.delta for cost in costs))
    private = all(cost.private for cost in costs) and all(c.get("private", True) for c in listed)
    total = repeat_and_select_cost(drawn + others, delta, distribution) if private else math.inf
    drawn_from = {"mean": distribution.mean, "distribution": name, "all_candidates_counted": bool(others)}
    block = selection_block(
        "repeat_and_select",
        figure(total),
        runs=None,
        delta=delta,
        accountant="rdp",
        complete=complete,
        facts={**drawn_from, "private": private},
    )
    return {**block, "repetitions": {**drawn_from, "shape": figure(distribution.shape)}}


def sweep_card(
    name: str, cards: Mapping[str, Card], selection: Mapping[str, Any], software: Mapping[str, Any]
) -> dict[str, Any]:
    """The card of a sweep from those of its runs by the names of their jobs."""
    spent, delta = selection["epsilon"], selection["delta"]
    private = spent != "inf" and all(card["guarantee"]["private"] for card in cards.values())
    repeated = selection["rule"] == "repeat_and_select"
    runs = []
    for job, card in cards.items():
        guarantee, mechanism = card["guarantee"], card["mechanism"]
        run = {"job": job, "run_id": card["run_id"], "status": card["status"]}
        run |= {key: guarantee[key] for key in ("private", "delta", "accountant")}
        run |= {key: mechanism[key] for key in ("k", "noise_multiplier")}
        epsilon = guarantee["epsilon_spent"][guarantee["accountant"]]
        own = {"epsilon": epsilon, "sample_rate": card["sampling"]["sample_rate"], "steps": card["steps"]["counted"]}
        runs.append({**run, **own, "mechanism": mechanism["name"]})
    about = terms("record")
    about |= {name: card["guarantee"][name] for card in cards.values() for name in about}
    return {
        "format": FORMAT,
        "kind": "sweep",
        "name": name,
        "written": now().replace("+00:00", "Z"),
        "status": "finished" if selection["complete"] else "training",
        "guarantee": {
            "statement": sentence(
                "sweep_statement",
                **{"spent": spent, "delta": delta, "private": private, "repeated": repeated, "unit": about["unit"]},
            ),
            **about,
            "trust_model": sentence("trust_model"),
            "private": private,
            "delta": delta,
            "accountant": selection["accountant"],
            "epsilon_spent": {selection["accountant"]: spent},
        },
        "runs": runs,
        "selection": dict(selection),
        "share": sentence("keep_to_yourself") if repeated else None,
        "not_covered": list(dict.fromkeys(line for card in cards.values() for line in card["not_covered"])),
        "software": dict(software),
    }
