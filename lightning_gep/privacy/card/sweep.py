"""The content of a sweep's card: its runs, and what all of them cost together."""

from collections.abc import Mapping
from typing import Any

from lightning_gep.privacy.card import sentences
from lightning_gep.privacy.files import now

Card = Mapping[str, Any]


def sweep_card(
    name: str, cards: Mapping[str, Card], selection: Mapping[str, Any], software: Mapping[str, Any]
) -> dict[str, Any]:
    """The card of a sweep from those of its runs by the names of their jobs."""
    figure, delta = selection["epsilon"], selection["delta"]
    private = figure != "inf" and all(card["guarantee"]["private"] for card in cards.values())
    repeated = selection["rule"] == "repeat_and_select"
    return {
        "format": 1,
        "kind": "sweep",
        "name": name,
        "written": now().replace("+00:00", "Z"),
        "status": "finished" if selection["complete"] else "training",
        "guarantee": {
            "statement": sentences.sweep_statement(figure, delta, private=private, repeated=repeated),
            "definition": sentences.DEFINITION,
            "private": private,
            "unit": sentences.UNIT,
            "neighbouring_relation": sentences.NEIGHBOURING_RELATION,
            "trust_model": sentences.TRUST_MODEL,
            "delta": delta,
            "accountant": selection["accountant"],
            "epsilon_spent": {selection["accountant"]: figure},
        },
        "runs": [_run(job, card) for job, card in cards.items()],
        "selection": dict(selection),
        "share": sentences.KEEP_TO_YOURSELF if repeated else None,
        "not_covered": list(dict.fromkeys(line for card in cards.values() for line in card["not_covered"])),
        "software": dict(software),
    }


def _run(job: str, card: Card) -> dict[str, Any]:
    guarantee, mechanism = card["guarantee"], card["mechanism"]
    return {
        "job": job,
        "run_id": card["run_id"],
        "status": card["status"],
        "private": guarantee["private"],
        "epsilon": guarantee["epsilon_spent"][guarantee["accountant"]],
        "delta": guarantee["delta"],
        "accountant": guarantee["accountant"],
        "mechanism": mechanism["name"],
        "k": mechanism["k"],
        "noise_multiplier": mechanism["noise_multiplier"],
        "sample_rate": card["sampling"]["sample_rate"],
        "steps": card["steps"]["counted"],
    }
