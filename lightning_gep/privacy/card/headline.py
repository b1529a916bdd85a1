"""The guarantee as a title: of a run that was picked from a sweep, with what picking it cost."""

from collections.abc import Mapping
from typing import Any

from lightning_gep.privacy.rounding import shown_delta, shown_epsilon

Card = Mapping[str, Any]
NOT_PRIVATE = "Not private"
NOT_COUNTED = "One run of a sweep whose cost is not counted yet"


def guaranteed(card: Card) -> tuple[float | str, float]:
    """ε and δ to rely on: those of the run alone, or, if it is one of a sweep, of having picked it there."""
    guarantee, selection = card["guarantee"], card["selection"]
    own = guarantee["epsilon_spent"][guarantee["accountant"]]
    if selection["rule"] == "single" or float(selection["epsilon"]) < float(own):
        return own, guarantee["delta"]
    return selection["epsilon"], selection["delta"]


def headline(card: Card) -> str:
    """One line that claims no more than holds."""
    epsilon, delta = guaranteed(card)
    if not card["guarantee"]["private"] or epsilon == "inf":
        return NOT_PRIVATE
    if card["selection"]["rule"] != "single" and not card["selection"]["complete"]:
        return NOT_COUNTED
    figures = f"(ε = {shown_epsilon(epsilon)}, δ = {shown_delta(delta)})"
    return f"{figures}-differentially private for {card['guarantee']['unit']}"
