import json
import math

import pytest

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import write_json
from lightning_gep.reporting.records import locked
from lightning_gep.reporting.runs import data_name, load
from tests.cards import a_card
from tests.synthetic_runs import write_run, write_sweep


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_states_of_a_sweep(tmp_path):
    jobs = write_sweep(tmp_path, states=["running", "running", "waiting", "failed"])
    with locked(tmp_path / jobs[0]):
        collection = load(tmp_path)
    assert [run.job for run in collection.runs] == jobs
    assert [run.status for run in collection.runs[:5]] == ["running", "interrupted", "waiting", "failed", "finished"]
    assert collection.runs[3].error == "RuntimeError: out of memory"
    assert collection.single is None
    assert collection.sweeps[0].card is None


def test_runs_and_sweeps_anywhere_below(tmp_path):
    write_sweep(tmp_path / "a" / "sweep", seeds=(0,), epsilons=(2.0,))
    write_run(tmp_path / "b" / "run-10")
    write_run(tmp_path / "b" / "run-2")
    collection = load(tmp_path)
    assert [run.place for run in collection.runs[2:]] == ["b/run-10", "b/run-2"]
    assert len(collection.runs) == 4
    assert len(collection.sweeps) == 1


def test_what_lies_inside_a_run_is_not_another_run(tmp_path):
    write_run(tmp_path / "one")
    write_run(tmp_path / "one" / "checkpoints" / "copy")
    write_run(tmp_path / ".trash" / "old")
    assert [run.place for run in load(tmp_path).runs] == ["one"]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe",
        b'{"job": "x", "colour": "red"}',
        b'{"job": "x", "config": []}',
        b"{}",
    ],
)
def test_a_damaged_run_is_named_and_hides_no_other(tmp_path, content):
    write_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_bytes(content)
    collection = load(tmp_path)
    assert {run.place: run.status for run in collection.runs} == {"bad": "unreadable", "good": "finished"}
    assert str(tmp_path / "bad" / "run.json") in collection.warnings[0]


@pytest.mark.parametrize("place", ["checkpoints/privacy_card.json", "metrics/metrics-old.csv"])
def test_damage_beside_the_record_is_a_warning(tmp_path, place):
    write_run(tmp_path / "one")
    (tmp_path / "one" / place).write_text("[1")
    collection = load(tmp_path / "one")
    assert collection.single.status == "finished"
    assert len(collection.warnings) == 1


def test_directories_without_runs(tmp_path):
    with pytest.raises(ConfigurationError, match="no directory"):
        load(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match=r"no run\.json"):
        load(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"run\.json cannot be read"):
        load(tmp_path)


def test_a_card_alone_is_a_run_of_ones_own_trainer(tmp_path):
    card = a_card(steps=30)
    write_json(tmp_path / "logs/version_0/checkpoints/privacy_card.json", card)
    (tmp_path / "logs/version_0/metrics.csv").write_text("step,test/accuracy\n29,0.75\n")
    run = load(tmp_path).single
    assert (run.job, run.status, run.step, run.mechanism) == ("logs/version_0", "finished", 30, "gep")
    assert run.epsilon == card["guarantee"]["epsilon_spent"]["rdp"]
    assert (run.delta, run.k, run.seconds) == (card["guarantee"]["delta"], card["mechanism"]["k"], None)
    assert run.newest("test/accuracy") == 0.75
    assert load(tmp_path / "logs/version_0/checkpoints").single.job == "version_0", "also from within"


def test_cards_set_aside_are_runs_and_a_resumed_run_is_one(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    write_json(checkpoints / "privacy_card-bbbbbbbb.json", a_card("b" * 32, "training", steps=10))
    write_json(checkpoints / "privacy_card.json", a_card("a" * 32, "stopped", steps=20))
    write_json(tmp_path / "resumed" / "privacy_card.json", a_card("a" * 32, "finished", steps=30))
    (tmp_path / "resumed" / "privacy_card-damaged.json").write_text("{")
    collection = load(tmp_path)
    found = {(run.job, run.status, run.step) for run in collection.runs}
    assert found == {(f"{tmp_path.name} (bbbbbbbb)", "running", 10), ("resumed", "finished", 30)}
    assert "privacy_card-damaged.json cannot be read" in collection.warnings[0]


def test_cards_within_recorded_runs_and_sweeps_are_not_runs_of_their_own(tmp_path):
    jobs = write_sweep(tmp_path, seeds=(0,), epsilons=(2.0,))
    assert [run.job for run in load(tmp_path).runs] == jobs


def test_a_seeded_run_is_not_private_whatever_its_noise(tmp_path):
    write_run(tmp_path / "one", private=False)
    run = load(tmp_path / "one").single
    assert run.noise_multiplier > 0
    assert run.not_private
    assert run.epsilon == math.inf


def test_an_automatic_k_comes_from_the_card(tmp_path):
    write_run(tmp_path / "one", k=100)
    record = json.loads((tmp_path / "one" / "run.json").read_text())
    record["config"]["mechanism"]["k"] = "auto"
    edit(tmp_path / "one" / "run.json", config=record["config"])
    assert load(tmp_path / "one").single.k == 100


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"_target_": "my.data.MNISTDataModule"}, "MNIST"),
        ({"_target_": "recipes.data.images.ImageDataModule", "name": "cifar10"}, "cifar10 (Image)"),
        ({"_target_": "recipes.data.features.FeaturesDataModule", "name": "cifar10"}, "cifar10 (Features)"),
        (None, ""),
    ],
)
def test_a_data_set_is_called_by_its_class_and_its_name(settings, name):
    assert data_name(settings) == name
