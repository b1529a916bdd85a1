"""Cards in words: the sentences of their JSON (`sentences.txt`), their headline, and their page.

Everything on a page that comes from a card is escaped (Jinja2's autoescape), and a page loads nothing from outside.
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from lightning_gep.privacy.rounding import Figure, shown, shown_delta, shown_epsilon

Card = Mapping[str, Any]
FOLDER = Path(__file__).parent
NOT_PRIVATE = "Not private"


def sentence(name: str, **values: object) -> str:
    """The text of that name in `sentences.txt`."""
    return " ".join(sentences(name, **values))


def sentences(name: str, **values: object) -> list[str]:
    """The items of the list of that name in `sentences.txt`."""
    template = _template("sentences.txt")
    text = "".join(template.blocks[name](template.new_context(values)))
    items = (re.sub(r"[ \n]+", " ", item).strip() for item in text.split("\n* "))
    return [item for item in items if item]


def private_at(epsilon: Figure, delta: float) -> str:
    """The guarantee as an adjective, rounded up."""
    return f"(ε = {shown_epsilon(epsilon)}, δ = {shown_delta(delta)})-differentially private"


def guaranteed(card: Card) -> tuple[float | str, float]:
    """The ε and δ to rely on: of the run alone or, for a run of a sweep, of having picked it there."""
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
        return "One run of a sweep whose cost is not counted yet"
    return f"{private_at(epsilon, delta)} for {card['guarantee']['unit']}"


def card_html(card: Card) -> Markup:
    """A card of a run or of a sweep as one `<article class="privacy-card">`, to embed in another page.

    A page that embeds cards has `card_css()` in a `<style>` element, once. Fields that a card lacks are left out or
    shown as a dash.

    Args:
        card: The content of a `privacy_card.json`.

    Returns:
        Escaped markup without scripts, links or external resources.

    Example:
        ```python
        page = f"<style>{card_css()}</style>{card_html(read_card(directory))}"
        ```

    """
    epsilon, delta = guaranteed(card)
    rendered = _template("card.html").render(
        card=card, headline=headline(card), not_private=NOT_PRIVATE, epsilon=epsilon, delta=delta
    )
    return Markup(rendered.strip())


def card_css() -> str:
    """The style sheet of `card_html`; every rule is limited to `.privacy-card`."""
    return (FOLDER / "style.css").read_text("utf-8")


def card_page(card: Card) -> str:
    """A whole page that shows one card and needs nothing but itself."""
    return _template("page.html").render(card=card, style=Markup(card_css()), body=card_html(card)) + "\n"


@cache
def _template(name: str) -> Template:
    """A page shows what a card has, also one of an earlier version; a sentence must not lack a value."""
    undefined, is_page = (ChainableUndefined, True) if name.endswith(".html") else (StrictUndefined, False)
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=is_page, undefined=undefined)
    for filter_name, function in {"epsilon": shown_epsilon, "delta": shown_delta, "shown": shown}.items():
        environment.filters[filter_name] = lambda value, shown=function: shown(
            None if isinstance(value, ChainableUndefined) else value
        )
    environment.filters["exp"] = lambda value: math.exp(float(value))
    environment.filters["sentence"] = lambda words: words[:1].upper() + words[1:] if words else ""
    environment.globals["private_at"] = private_at
    return environment.get_template(name)
