import json
import math

import pytest

from lightning_gep.reporting.card_view import card_html, is_not_private
from lightning_gep.reporting.runs import load
from tests.synthetic_runs import write_run


@pytest.fixture
def card(tmp_path):
    write_run(tmp_path / "one", epsilon=8.0)
    return load(tmp_path / "one").single.card


def test_everything_on_the_card_is_shown(card):
    shown = card_html(card)
    for text in (
        card["guarantee"]["statement"],
        "one training record",
        "5d41402abc4b2a76b9719d911017c592.ledger",
        "c0ffee",
    ):
        assert text in shown
    assert "pld 7.999, rdp 8.399" in shown
    assert "name features, parameters 9800, k 60; name head" in shown


def test_epsilon_on_a_card_is_rounded_up(card):
    card["selection"]["epsilon"] = 7.00001
    assert "7.001" in card_html(card)


def test_fields_may_be_missing_null_or_new(card):
    for key in list(card):
        card_html({name: value for name, value in card.items() if name != key})
        card_html({**card, key: None})
        card_html({**card, key: "text"})
        card_html({**card, key: ["text"]})
    assert card_html({}) == card_html({"format": 1})
    assert "brand new" in card_html({"brand_new": {"x": 1}})
    assert "because" not in card_html({"guarantee": {"not_private_because": []}})


def test_what_is_not_private_is_marked(tmp_path, card):
    assert not is_not_private(card)
    assert "not private" not in card_html(card)
    write_run(tmp_path / "infinite", epsilon=math.inf)
    infinite = json.loads((tmp_path / "infinite" / "checkpoints" / "privacy_card.json").read_text())
    assert is_not_private(infinite)
    assert "pld ∞, rdp ∞" in card_html(infinite)
    card["guarantee"]["private"] = False
    assert "not private" in card_html(card)


def test_nothing_on_a_card_is_markup(card):
    attack = "<script>alert(1)</script>"
    card = {**card, attack: attack, "released": [attack], "software": {attack: attack, "nested": {attack: [attack]}}}
    card["guarantee"] = {**card["guarantee"], "statement": attack, attack: attack}
    assert "<script" not in card_html({**card, "status": attack, "written": attack})
