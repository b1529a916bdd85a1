"""A privacy card as HTML. Fields may be missing or new: what is there is shown, under its own name."""

import math
from typing import Any

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.markup import NOT_PRIVATE_MARK, mark, tag, text
from lightning_gep.reporting.runs import Card, inner, number
from lightning_gep.reporting.text import short

TITLES = {
    "guarantee": "Guarantee",
    "mechanism": "Mechanism",
    "sampling": "Sampling",
    "steps": "Steps",
    "public_data": "Public data",
    "released": "Released",
    "not_covered": "Not covered",
    "selection": "Selection among runs",
    "randomness": "Randomness",
    "software": "Software",
}
NAMES = {
    "epsilon_spent": "ε spent",
    "epsilon_planned": "ε planned",
    "target_epsilon": "target ε",
    "epsilon": "ε",
    "delta": "δ",
    "sigma": "σ",
    "noise_std": "noise std",
    "num_parameters": "parameters",
    "num_anchors": "anchors",
    "sha256": "SHA-256",
}
SHOWN_ELSEWHERE = {"format", "written", "status", "kind", "name", "headline", "runs"}
"""As marks, as the page's title, or, the runs of a sweep, in the report's own table."""


def card_html(card: Card) -> str:
    """The statement first, then every part as a list of definitions."""
    statement = inner(card, "guarantee", "statement")
    lead = tag("p", text(statement), class_="statement") if statement else ""
    keys = [key for key in dict.fromkeys([*TITLES, *card]) if key not in SHOWN_ELSEWHERE]
    parts = [_part(str(key), card[key]) for key in keys if card.get(key) not in (None, [], {})]
    return tag("div", lead, _marks(card), tag("div", *parts, class_="parts"), class_="card-body")


def is_not_private(card: Card) -> bool:
    """Whether the card itself says that there is no guarantee."""
    spent = inner(card, "guarantee", "epsilon_spent")
    infinite = isinstance(spent, dict) and any(number(value) == math.inf for value in spent.values())
    return inner(card, "guarantee", "private") is False or infinite


def _marks(card: Card) -> str:
    marks = []
    if is_not_private(card):
        marks.append(NOT_PRIVATE_MARK)
    elif inner(card, "guarantee", "private") is True:
        marks.append(mark("private", "good"))
    if card.get("status"):
        marks.append(mark(str(card["status"])))
    if card.get("written"):
        marks.append(tag("span", text(f"written {card['written']}"), class_="quiet"))
    return tag("p", " ".join(marks)) if marks else ""


def _part(key: str, content: Any) -> str:
    if key == "guarantee" and isinstance(content, dict):
        content = {name: value for name, value in content.items() if name not in ("statement", "private")}
    title = TITLES.get(key, key.replace("_", " "))
    return tag("div", tag("h4", text(title)), _content(content), class_="part")


def _content(content: Any) -> str:
    if isinstance(content, list):
        return tag("ul", *(tag("li", _inline(item)) for item in content))
    if not isinstance(content, dict):
        return tag("p", _inline(content))
    rows = [
        tag("div", tag("dt", text(_name(name))), tag("dd", _inline(value, str(name))))
        for name, value in content.items()
        if value not in (None, [], {})
    ]
    return tag("dl", *rows)


def _name(key: object) -> str:
    return NAMES.get(str(key), str(key).replace("_", " "))


def _inline(value: Any, name: str = "") -> str:
    """A value on one line. Every ε is rounded up; "inf" is ∞."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, dict):
        # ε by accountant: what the outer name says of the number holds inside.
        outer = name if "epsilon" in name else ""
        return ", ".join(f"{text(_name(key))} {_inline(item, outer or str(key))}" for key, item in value.items())
    if isinstance(value, list):
        separator = "; " if any(isinstance(item, dict) for item in value) else ", "
        return separator.join(_inline(item) for item in value)
    found = number(value)
    if "epsilon" in name and found is not None:
        return rounded_up(found)
    if isinstance(value, float) or found == math.inf:
        return short(found)
    return text(value)
