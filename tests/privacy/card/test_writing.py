"""Cards on disk: whose they are, what replaces them, and the card of a sweep."""

import json

import pytest

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.card import read_card, update_selection, write_sweep_card
from lightning_gep.privacy.card.content import CONTINUED, RunFacts
from lightning_gep.privacy.card.rendering import headline
from lightning_gep.privacy.card.writing import read_card_of, write_card
from lightning_gep.privacy.rounding import shown_epsilon
from lightning_gep.strategy.run_card import RunCard, card_directory
from tests.cards import MECHANISM, SOFTWARE, a_card, account, selection_of

ONE, OTHER = "a" * 32, "b" * 32


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_json_and_page_are_written_whole(tmp_path):
    write_card(tmp_path / "new" / "place", a_card())
    assert names(tmp_path / "new" / "place") == ["privacy_card.html", "privacy_card.json"]
    written = read_card(tmp_path / "new" / "place")
    assert written == a_card() | {"written": written["written"], "headline": headline(written)}


def test_runs_that_take_turns_have_one_card_each_and_the_newest(tmp_path):
    for steps, run_id in ((10, ONE), (20, OTHER), (30, ONE), (40, OTHER), (50, ONE)):
        write_card(tmp_path, a_card(run_id, steps=steps))
    assert names(tmp_path) == [
        f"privacy_card-{OTHER}.html", f"privacy_card-{OTHER}.json", "privacy_card.html", "privacy_card.json",
    ]  # fmt: skip
    assert read_card_of(ONE, tmp_path)["steps"]["counted"] == 50
    assert read_card_of(OTHER, tmp_path)["steps"]["counted"] == 40
    assert read_card_of("c" * 32, tmp_path) is None
    assert [json.loads(path.read_text())["run_id"] for path in tmp_path.glob("privacy_card-*.json")] == [OTHER]


def test_what_cannot_be_read_is_kept_too(tmp_path):
    (tmp_path / "privacy_card.json").write_text("{torn")
    write_card(tmp_path, a_card())
    assert (tmp_path / "privacy_card-unreadable.json").read_text() == "{torn"
    assert read_card(tmp_path)["run_id"] == ONE


def test_a_selection_is_put_on_a_card(tmp_path):
    cards = {"seed=0": a_card(ONE), "seed=1": a_card(OTHER)}
    selection = selection_of(*cards.values())
    write_card(tmp_path, cards["seed=0"])
    update_selection(tmp_path, selection)
    changed, page = read_card(tmp_path), (tmp_path / "privacy_card.html").read_text()
    assert changed == cards["seed=0"] | {"selection": selection, "headline": changed["headline"]}
    total, alone = selection["epsilon"], cards["seed=0"]["guarantee"]["epsilon_spent"]["rdp"]
    assert total > alone
    assert changed["headline"].startswith(f"(ε = {shown_epsilon(total)}, δ = 0.0001)-differentially private")
    assert f"this run would have ε = {shown_epsilon(alone)}." in page
    assert "One run of a sweep. 2 runs on the same records" in page
    with pytest.raises(ConfigurationError, match="no privacy card in the directory 'empty'"):
        update_selection(tmp_path / "empty", selection)


def test_one_run_that_is_not_private_leaves_no_guarantee_to_its_sweep_nor_to_the_others(tmp_path):
    cards = {"a": a_card(ONE), "b": a_card(OTHER, generator="seeded")}
    write_card(tmp_path / "a", cards["a"])
    update_selection(tmp_path / "a", selection_of(*cards.values()))
    assert read_card(tmp_path / "a")["headline"] == "Not private"
    assert "differentially private for" not in (tmp_path / "a" / "privacy_card.html").read_text().split("</header>")[0]
    card = write_sweep_card(tmp_path, cards, selection_of(*cards.values()))
    assert not card["guarantee"]["private"]
    assert "<h1>Not private</h1>" in (tmp_path / "privacy_card.html").read_text()


def test_a_run_that_goes_on_keeps_what_a_sweep_counted_and_marks_it(tmp_path):
    write_card(tmp_path, a_card(ONE))
    selection = selection_of(a_card(ONE), a_card(OTHER))
    update_selection(tmp_path, selection)
    facts = RunFacts(mechanism=MECHANISM, generator="system", device="cpu", software=SOFTWARE)
    for _ in range(2):
        card = RunCard(tmp_path, account(ONE, steps=101), facts, pytest.fail)
        card.start()
        card.end()
        found = read_card(tmp_path)["selection"]
        assert found == selection | {"complete": False, "explanation": selection["explanation"] + CONTINUED}


def test_the_card_of_a_sweep(tmp_path):
    cards = {"privacy.epsilon=2,seed=0": a_card(ONE), "privacy.epsilon=8,seed=0": a_card(OTHER, sigma=1.0, steps=50)}
    selection = selection_of(*cards.values())
    written = write_sweep_card(tmp_path / "my sweep", cards, selection)
    card = read_card(tmp_path / "my sweep")
    assert card == written
    assert (card["format"], card["kind"], card["name"], card["status"]) == (1, "sweep", "my sweep", "finished")
    assert card["selection"] == selection
    assert card["guarantee"]["epsilon_spent"] == {selection["accountant"]: selection["epsilon"]}
    first, second = card["runs"]
    assert first["job"] == "privacy.epsilon=2,seed=0"
    assert first["epsilon"] == cards["privacy.epsilon=2,seed=0"]["guarantee"]["epsilon_spent"]["rdp"]
    assert (second["mechanism"], second["delta"], second["steps"], second["noise_multiplier"]) == ("gep", 1e-4, 50, 1.0)
    page = (tmp_path / "my sweep" / "privacy_card.html").read_text()
    assert "privacy.epsilon=8,seed=0" in page
    assert "All runs together are (ε = " in page
    assert str(tmp_path) not in page + json.dumps(card)


def test_the_card_of_a_sweep_of_unknown_length_is_not_to_be_shared(tmp_path):
    cards = {"draw=0": a_card(ONE), "draw=1": a_card(OTHER)}
    selection = selection_of(*cards.values(), repetitions={"mean": 5, "distribution": "geometric"})
    card = write_sweep_card(tmp_path, cards, selection)
    assert "never this one" in card["share"]
    assert "never this one" in (tmp_path / "privacy_card.html").read_text()
    assert "and nothing else of it" in card["guarantee"]["statement"]


class Callback:
    def __init__(self, dirpath):
        self.dirpath = dirpath


def test_the_place_of_a_card(tmp_path):
    there = tmp_path / "ckpt"
    assert card_directory([Callback(str(there))], tmp_path) == there
    assert card_directory([object(), Callback(None), Callback(there)], tmp_path) == there
    assert card_directory([], str(tmp_path)) == tmp_path / "privacy"
    assert card_directory([Callback("s3://bucket/x")], tmp_path) == tmp_path / "privacy"
