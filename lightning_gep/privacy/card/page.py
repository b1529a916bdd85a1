"""The card as HTML: the promise first, then what an evaluator would ask.

Everything that comes from a card is escaped (Jinja2's autoescape), and a page loads nothing from outside.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup

from lightning_gep.privacy.card import sentences
from lightning_gep.privacy.rounding import shown, shown_delta, shown_epsilon

Card = Mapping[str, Any]
FOLDER = Path(__file__).parent
NOT_VERSIONS = ("git_revision", "git_dirty", "platform", "device", "processes")


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
    values = _sweep_values(card) if card.get("kind") == "sweep" else _run_values(card)
    software = card.get("software", {})
    rendered = (
        _environment()
        .get_template("template.html")
        .render(
            card=card,
            headline=sentences.headline(card),
            versions=", ".join(
                f"{key} {value}" for key, value in software.items() if key not in NOT_VERSIONS and value
            ),
            not_private=sentences.NOT_PRIVATE,
            methods=sentences.METHODS,
            rules=sentences.RULES,
            **values,
        )
    )
    return Markup(rendered.strip())


def card_css() -> str:
    """The style sheet of `card_html`; every rule is limited to `.privacy-card`."""
    return (FOLDER / "style.css").read_text("utf-8")


def card_page(card: Card) -> str:
    """A whole page that shows one card and needs nothing but itself."""
    title = f"Privacy card of the sweep {card['name']}" if card.get("kind") == "sweep" else "Privacy card"
    template = _environment().get_template("page.html")
    return template.render(title=title, style=Markup(card_css()), body=card_html(card)) + "\n"


def _run_values(card: Card) -> dict[str, Any]:
    guarantee, steps, selection = card["guarantee"], card["steps"], card["selection"]
    own = guarantee["epsilon_spent"][guarantee["accountant"]]
    planned = (guarantee.get("epsilon_planned") or {}).get(guarantee["accountant"])
    in_sweep = selection["rule"] != "single"
    notices = []
    if in_sweep:
        notices.append(sentences.one_of_a_sweep(selection["explanation"], own))
    if card.get("logs", {}).get("left_unprotected"):
        notices.append(sentences.LEFT_UNPROTECTED)
    ended = guarantee["private"] and card["status"] != "training"
    return {
        "state": sentences.STATUS.get(card["status"], card["status"]),
        "statement": sentences.promise(card) if ended else guarantee["statement"],
        "notices": notices,
        "numbers": (
            ("ε of this run", shown_epsilon(own)),
            ("ε with selection", shown_epsilon(selection["epsilon"]))
            if in_sweep
            else ("ε planned", shown_epsilon(planned)),
            ("δ", shown_delta(guarantee["delta"])),
            ("noise multiplier σ", shown(card["mechanism"]["noise_multiplier"])),
            ("steps", " of ".join(shown(count) for count in (steps["counted"], steps["planned"]) if count is not None)),
            ("records", shown(card["sampling"]["records"])),
        ),
    }


def _sweep_values(card: Card) -> dict[str, Any]:
    share = card.get("share")
    return {
        "state": f"Sweep {card.get('name', '')}",
        "statement": card["guarantee"]["statement"],
        "notices": [share] if share else [],
    }


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=ChainableUndefined)
    known = {"epsilon": shown_epsilon, "delta": shown_delta, "shown": shown}
    environment.filters |= {name: _or_dash(function) for name, function in known.items()}
    environment.filters["sentence"] = lambda words: words[:1].upper() + words[1:] if words else ""
    return environment


def _or_dash(function: Any) -> Any:
    return lambda value: function(None if isinstance(value, ChainableUndefined) else value)
