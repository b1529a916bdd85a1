"""The page: what it says first, that it needs nothing else, and that text stays text."""

import re

import pytest

from lightning_gep.privacy.card import card_html
from lightning_gep.privacy.card.rendering import card_page
from lightning_gep.privacy.card.sweep import sweep_card
from lightning_gep.privacy.rounding import shown_epsilon
from tests.cards import MECHANISM, PUBLIC, SOFTWARE, a_card, selection_of
from tests.outline import Outline

EVIL = "<script>alert('x')</script>&\"'"


def sweep():
    cards = {f"{EVIL}": a_card(), "seed=1": a_card("b" * 32)}
    return card_page(sweep_card(EVIL, cards, selection_of(*cards.values()), SOFTWARE))


PAGES = {
    "finished": lambda: card_page(a_card()),
    "training": lambda: card_page(a_card(status="training", steps=0)),
    "stopped": lambda: card_page(a_card(status="stopped", steps=7)),
    "not private": lambda: card_page(a_card(generator="seeded")),
    "no public data": lambda: card_page(a_card(public_data=None, mechanism={**MECHANISM, "k": None, "split": None})),
    "sweep": sweep,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_and_needs_nothing_else(name):
    page = PAGES[name]()
    parsed = Outline(page)
    assert "script" not in parsed.tags
    assert not {"src", "href"} & set(parsed.attributes)
    assert "url(" not in page
    assert "@import" not in page
    assert page.count("<h1>") == 1
    assert "None" not in parsed.text


def test_the_title_is_the_guarantee_rounded_up():
    card = a_card()
    spent = card["guarantee"]["epsilon_spent"]["rdp"]
    title = re.search("<h1>(.*?)</h1>", card_page(card)).group(1)
    assert title == f"(ε = {shown_epsilon(spent)}, δ = 0.0001)-differentially private for one training record"
    assert float(title.split()[2].strip(",")) >= spent


def test_all_text_is_escaped():
    facts = {
        "mechanism": {**MECHANISM, "name": EVIL, "groups": [{"name": EVIL, "parameters": 1, "k": 1}]},
        "public_data": {**PUBLIC, "name": EVIL, "note": EVIL, "compared_with": EVIL},
        "logged": (EVIL,),
        "log_nonprivate": True,
        "software": {**SOFTWARE, "torch": EVIL, "git_revision": EVIL, "platform": EVIL},
    }
    for page in (card_page(a_card(**facts)), sweep()):
        parsed = Outline(page)
        assert "script" not in parsed.tags
        assert "<script" not in page
        assert "alert(" in parsed.text


def test_a_card_that_lacks_fields_is_shown_all_the_same():
    card = a_card()
    for section in ("logs", "utility", "run_id", "public_data", "randomness"):
        del card[section]
    card["mechanism"] = {"name": "gp", "noise_multiplier": 1.0, "k": None}
    assert "Not covered" in card_html(card)


def test_what_left_without_protection_is_said_at_the_top():
    page = card_page(a_card(log_nonprivate=True))
    assert page.index("left without protection") < page.index("<h2>")
    assert "left without protection" not in card_page(a_card())
