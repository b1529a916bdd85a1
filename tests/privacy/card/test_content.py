"""The card of a fit: what it says, that it is true, and what it must never contain."""

import getpass
import json
import math
import platform
import subprocess
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from lightning_gep import RandomLabels
from lightning_gep.errors import BudgetExhaustedError
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.accounting import epsilon
from lightning_gep.privacy.card.content import RunFacts, run_card
from lightning_gep.privacy.card.software import git_revision
from lightning_gep.privacy.ledger import read as read_ledger
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import GP
from lightning_gep.strategy.callbacks import PrivacyBudget
from tests.cards import a_card
from tests.toys import CLASSES, INF, Classifier, loader, records, strategy, trainer

FACTS = RunFacts(mechanism={"k": None}, generator="system", device="cpu", software={})
HASH_DIGITS = 64
NOTHING = {"noise_multiplier": 0.0, "clip_embedding": INF, "clip_residual": INF}
SECTIONS = {
    "format", "kind", "run_id", "written", "status", "guarantee", "mechanism", "sampling", "steps", "public_data",
    "released", "not_covered", "headline", "logs", "utility", "selection", "randomness", "software",
}  # fmt: skip


def card_in(directory):
    beside_the_ledger = directory / "privacy" / "privacy_card.json"
    path = beside_the_ledger if beside_the_ledger.exists() else directory / "privacy_card.json"
    return json.loads(path.read_text(), parse_constant=refuse)


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


def fit(directory, using, module=None, data=None, checkpoint=None, **settings):
    used = trainer(directory, using, **{"max_epochs": -1, "max_steps": 4, **settings})
    used.fit(module or Classifier(), data or loader(), ckpt_path=checkpoint)
    return used


def saving(directory, **settings):
    return {"callbacks": [ModelCheckpoint(directory, "{step}", save_top_k=-1, every_n_train_steps=1, **settings)],
            "enable_checkpointing": True}  # fmt: skip


def topic(card, name):
    (line,) = [line for line in card["not_covered"] if line.startswith(f"{name}:")]
    return line


def test_a_finished_fit_says_what_it_guarantees_and_the_mechanism_that_ran(tmp_path):
    used = strategy(
        generator="secure", clip_residual=0.5, clip_embedding="auto", split="optimal", refresh_every=3, delta=1e-3
    )
    fit(tmp_path, used)
    card, page = card_in(tmp_path), (tmp_path / "privacy" / "privacy_card.html").read_text()
    assert card["randomness"]["secret"]
    assert "ChaCha20" in card["randomness"]["explanation"]
    assert ")-differentially private for one training record</h1>" in page
    assert card.keys() == SECTIONS
    assert (card["format"], card["kind"], card["status"]) == (1, "run", "finished")
    assert card["run_id"] == used.privacy.run_id
    guarantee, event, release = card["guarantee"], used.privacy.plan.event, used.privacy.plan.release
    assert (guarantee["private"], guarantee["not_private_because"], guarantee["delta"]) == (True, [], 1e-3)
    assert guarantee["unit"] == "one training record"
    assert guarantee["neighbouring_relation"] == "adding or removing one record"
    spent, exact = guarantee["epsilon_spent"], epsilon([(event, 4)], 1e-3, "pld")
    assert spent["rdp"] == pytest.approx(epsilon([(event, 4)], 1e-3, "rdp"), rel=1e-12)
    assert spent["rdp"] == pytest.approx(used.privacy.epsilon(), rel=1e-12)
    assert exact * (1 - 1e-9) <= spent["pld"] < exact * 1.0002, "a coarser grid rounds up"
    assert guarantee["epsilon_planned"] == spent
    assert card["sampling"] == {
        "method": "poisson", "records": 60, "counted": "records", "expected_batch_size": 12, "sample_rate": 0.2,
    }  # fmt: skip
    assert card["steps"] == {"counted": 4, "planned": 4, "ledger": f"{used.privacy.run_id}.ledger", "carried": 0}
    assert read_ledger(tmp_path / "privacy" / card["steps"]["ledger"]).count == 4
    assert (card["selection"]["rule"], card["selection"]["epsilon"]) == ("single", spent["rdp"])
    assert card["logs"] == {
        "log_nonprivate": False, "logged_by_training_step": ["train/loss"], "left_unprotected": [],
    }  # fmt: skip
    assert "training logs train/loss; log_nonprivate was off" in topic(card, "Training loss and the like")
    mechanism, embedding = card["mechanism"], release.embedding
    assert (mechanism["name"], mechanism["noise_multiplier"]) == ("gep", release.noise_multiplier)
    assert mechanism["embedding"] == {
        "clip": embedding.clip, "sigma": embedding.sigma, "noise_std": embedding.clip * embedding.sigma,
    }  # fmt: skip
    assert mechanism["residual"]["noise_std"] == 0.5 * release.residual.sigma
    assert (mechanism["k"], mechanism["split"], mechanism["subspace"]) == (6, "optimal", "tracked")
    assert (mechanism["num_anchors"], mechanism["refresh_every"]) == (20, 3)
    assert sum(group["k"] for group in mechanism["groups"]) == 6
    assert sum(group["parameters"] for group in mechanism["groups"]) == mechanism["num_parameters"] == 53
    assert mechanism["chosen_on_public_data"] == ["clip_embedding"]
    assert f"embedding by at most {embedding.clip:g} and of the residual by at most 0.5" in mechanism["sensitivity"]


def test_ordinary_dp_sgd_has_no_basis_and_no_public_data(tmp_path):
    fit(tmp_path, strategy(mechanism="gp", clip_norm=2.0), max_steps=1)
    card = card_in(tmp_path)
    assert card["public_data"] is None
    mechanism = card["mechanism"]
    assert mechanism["embedding"] is mechanism["k"] is mechanism["subspace"] is mechanism["split"] is None
    assert mechanism["residual"]["clip"] == 2.0
    assert mechanism["chosen_on_public_data"] == []
    assert "the gradient by at most 2" in mechanism["sensitivity"]
    assert not any(line.startswith("Subspace") for line in card["released"])
    assert "rough range of the values" in topic(card, "Public numbers")


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        ({"generator": "seeded"}, ["follow a seed and can be repeated"]),
        ({**NOTHING, "seed": 987654321}, ["no noise is added", "is infinite", "follow a seed"]),
    ],
)
def test_a_run_that_is_not_private_says_so_loudly(tmp_path, settings, reasons):
    fit(tmp_path, strategy(**settings), max_steps=2)
    card, page = card_in(tmp_path), (tmp_path / "privacy" / "privacy_card.html").read_text()
    guarantee = card["guarantee"]
    assert not guarantee["private"]
    for reason, line in zip(reasons, guarantee["not_private_because"], strict=True):
        assert reason in line
        assert reason in guarantee["statement"]
    assert guarantee["statement"].startswith("Not private: ")
    assert set(guarantee["epsilon_spent"].values()) == set(guarantee["epsilon_planned"].values()) == {"inf"}
    assert (card["selection"]["epsilon"], card["headline"]) == ("inf", "Not private")
    assert "<h1>Not private</h1>" in page
    assert "differentially private for" not in page
    assert [line.split(":")[0] for line in card["released"]] == ["Nothing"]
    assert not card["randomness"]["secret"]
    assert "987654321" not in json.dumps(card) + page, "a seed is not on the card"
    if "seed" in settings:
        assert card["mechanism"]["embedding"] == {"clip": "inf", "sigma": 0.0, "noise_std": 0.0}, "nor an infinity"


def test_it_is_there_from_the_start_and_follows_the_checkpoints(tmp_path):
    seen, settings = [], saving(tmp_path / "ckpt")
    settings["callbacks"].append(
        LambdaCallback(on_train_batch_start=lambda *_: seen.append(card_in(tmp_path / "ckpt")))
    )
    used = strategy(generator="system", epsilon=5.0)
    fit(tmp_path, used, **settings)
    assert used.card_directory == tmp_path / "ckpt"
    assert not (tmp_path / "privacy" / "privacy_card.json").exists()
    assert [card["steps"]["counted"] for card in seen] == [0, 1, 2, 3]
    assert {card["status"] for card in seen} == {"training"}
    first, last = seen[0]["guarantee"], card_in(tmp_path / "ckpt")["guarantee"]
    assert first["epsilon_spent"] == {"pld": 0.0, "rdp": 0.0}
    assert first["epsilon_planned"]["pld"] is None, "what nobody asked for is not computed before the end"
    assert first["epsilon_planned"]["rdp"] == last["epsilon_spent"]["rdp"] <= 5.0
    assert first["statement"].startswith("So far, after 0 of 4 steps")
    assert not seen[0]["selection"]["complete"]
    spent = [card["guarantee"]["epsilon_spent"]["rdp"] for card in seen]
    assert spent == sorted(spent)
    assert spent[3] < last["epsilon_spent"]["rdp"]


@pytest.mark.parametrize(("error", "seen"), [(ZeroDivisionError("12 patients"), ZeroDivisionError),
                                             (KeyboardInterrupt(), SystemExit)])  # fmt: skip
def test_an_exception_or_interruption_leaves_a_card_that_says_stopped(tmp_path, error, seen):
    def fail(trainer, *_):
        if trainer.global_step == 2:
            raise error

    with pytest.raises(seen):
        fit(tmp_path, strategy(generator="system"), callbacks=[LambdaCallback(on_train_batch_end=fail)])
    card = card_in(tmp_path)
    assert (card["status"], card["steps"]["counted"]) == ("stopped", 2)
    assert card["guarantee"]["epsilon_spent"]["pld"] > 0
    assert "12 patients" not in json.dumps(card), "a message of the user's code may quote records"


def test_ending_at_the_budget_is_finishing_and_running_into_it_is_stopping(tmp_path):
    settings = {"epsilon": 5.0, "generator": "system"}
    fit(tmp_path, strategy(**settings), **saving(tmp_path / "ckpt"))
    checkpoint = tmp_path / "ckpt" / "step=2.ckpt"
    fit(tmp_path / "a", strategy(**settings), checkpoint=checkpoint, max_steps=9, callbacks=[PrivacyBudget()])
    assert card_in(tmp_path / "a")["status"] == "finished"
    with pytest.raises(BudgetExhaustedError):
        fit(tmp_path / "b", strategy(**settings), checkpoint=checkpoint, max_steps=9)
    assert card_in(tmp_path / "b")["status"] == "stopped"


def test_a_fit_that_fails_before_it_begins_leaves_no_card(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, strategy(), callbacks=[LambdaCallback(on_train_start=lambda *_: 1 / 0)])
    assert not (tmp_path / "privacy" / "privacy_card.json").exists()


def test_a_resumed_run_counts_what_the_crash_lost_and_says_what_a_lost_ledger_did(tmp_path):
    fit(tmp_path, strategy(generator="system"), **saving(tmp_path / "ckpt"))
    first, checkpoint = card_in(tmp_path / "ckpt"), tmp_path / "ckpt" / "step=2.ckpt"
    again = fit(tmp_path, strategy(generator="system"), checkpoint=checkpoint, **saving(tmp_path / "ckpt"))
    card = card_in(tmp_path / "ckpt")
    assert card["run_id"] == first["run_id"]
    assert card["steps"]["counted"] == again.strategy.privacy.steps == 4 + 2
    assert card["guarantee"]["epsilon_spent"]["rdp"] > first["guarantee"]["epsilon_spent"]["rdp"]
    assert card["guarantee"]["epsilon_planned"]["rdp"] == first["guarantee"]["epsilon_spent"]["rdp"]
    assert card["status"] == "finished"
    next((tmp_path / "privacy").glob("*.ledger")).unlink()
    fit(tmp_path / "new", strategy(generator="system", trust_checkpoint=True), checkpoint=checkpoint)
    card = card_in(tmp_path / "new")
    assert card["steps"]["carried"] == 2
    assert "2 steps are known from a checkpoint only" in topic(card, "Lost ledger")


def test_testing_and_saving_leave_the_card_finished_and_a_second_fit_goes_on_with_it(tmp_path):
    used = fit(tmp_path, strategy(generator="system"), max_steps=2)
    before = card_in(tmp_path)
    used.save_checkpoint(tmp_path / "later.ckpt")
    used.test(used.lightning_module, loader(shuffle=False), verbose=False)
    assert {**card_in(tmp_path), "written": ""} == {**before, "written": ""}
    used.fit_loop.epoch_loop.max_steps = 5
    used.fit(Classifier(), loader())
    card = card_in(tmp_path)
    assert (card["steps"]["counted"], card["status"]) == (5, "finished")
    assert card["run_id"] == before["run_id"] == used.strategy.privacy.run_id
    assert list((tmp_path / "privacy").glob("privacy_card-*")) == []


def test_what_log_nonprivate_let_out_stays_on_the_card_of_later_fits(tmp_path):
    fit(tmp_path, strategy(generator="system", log_nonprivate=True), max_steps=2, **saving(tmp_path / "ckpt"))
    card = card_in(tmp_path / "ckpt")
    assert card["logs"]["left_unprotected"][0] == "train/loss"
    assert "log_nonprivate was ON. Published without protection: nonprivate/train/loss" in topic(
        card, "Training loss and the like"
    )
    assert "left without protection" in (tmp_path / "ckpt" / "privacy_card.html").read_text()
    # Elsewhere, from the checkpoint alone.
    fit(tmp_path / "new", strategy(generator="system"), checkpoint=tmp_path / "ckpt" / "step=2.ckpt", max_steps=3)
    card = card_in(tmp_path / "new")
    assert not card["logs"]["log_nonprivate"]
    assert card["logs"]["left_unprotected"][0] == "train/loss"
    assert "in an earlier part of this run" in topic(card, "Training loss and the like")


def test_an_earlier_attempt_that_its_checkpoint_does_not_know_stays_on_the_card(tmp_path):
    """A second attempt leaks, or follows a seed, and leaves no checkpoint; the third resumes from the first."""
    fit(tmp_path, strategy(generator="system"), max_steps=2, **saving(tmp_path / "ckpt"))
    checkpoint = tmp_path / "ckpt" / "step=2.ckpt"
    rarely = {"callbacks": [ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=100, save_on_train_epoch_end=False)],
              "enable_checkpointing": True}  # fmt: skip
    fit(tmp_path, strategy(generator="seeded", log_nonprivate=True), checkpoint=checkpoint, max_steps=3, **rarely)
    fit(tmp_path, strategy(generator="system"), checkpoint=checkpoint, max_steps=3, **saving(tmp_path / "ckpt"))
    card = card_in(tmp_path / "ckpt")
    assert not card["guarantee"]["private"]
    assert any("earlier part of this run followed a seed" in line for line in card["guarantee"]["not_private_because"])
    assert not card["randomness"]["secret"]
    assert card["logs"]["left_unprotected"][0] == "train/loss"


def test_what_is_never_covered_is_always_said():
    topics = [line.split(":")[0] for line in a_card()["not_covered"]]
    assert topics == [
        "Training loss and the like", "Callbacks, hooks, prints", "Failures", "Validation and test records",
        "Hyperparameters", "Preprocessing", "Initial weights", "Public numbers", "Several records of one person",
        "Side channels", "Floating point", "Checks", "Access",
    ]  # fmt: skip


# What it must not contain.


def test_no_path_no_names_no_secret(tmp_path, monkeypatch):
    from tests.resumable import encodings, watched_secrets

    secrets = watched_secrets(monkeypatch)
    fit(tmp_path, strategy(generator="system"), **saving(tmp_path / "ckpt"))
    files = [path.read_bytes() for path in (tmp_path / "ckpt").glob("privacy_card*")]
    assert len(files) == 2
    assert secrets
    names = {str(tmp_path), str(Path.home()), str(Path.cwd()), platform.node()} - {"/", ""}
    for file in files:
        assert not [name for name in names if name.encode() in file]
        for secret in secrets:
            assert not [encoding for encoding in encodings(secret) if encoding in file]
    if len(getpass.getuser()) > 4:
        assert getpass.getuser().encode() not in b"".join(files)


def test_a_place_that_cannot_be_written_is_a_warning_and_training_ends_well(tmp_path):
    blocked = tmp_path / "ckpt"
    blocked.write_text("a file where the directory should be")

    class Elsewhere(ModelCheckpoint):
        """Checkpoints that need no directory."""

        def _save_checkpoint(self, trainer, filepath):
            pass

    used = strategy(generator="system")
    callback = Elsewhere(None)
    callback.dirpath = str(blocked)
    with pytest.warns(UserWarning, match="privacy card could not be written"):
        done = fit(tmp_path, used, callbacks=[callback], enable_checkpointing=True)
    assert done.state.finished
    assert used.privacy.steps == 4


# Public data.


def public(x, **settings):
    return DataLoader(RandomLabels(TensorDataset(x), CLASSES), batch_size=50, **settings)


def hash_of(directory, x, **settings):
    fit(directory, strategy(aux_dataloader=public(x, **settings)), max_steps=1)
    return card_in(directory)["public_data"]


def test_the_hash_is_that_of_the_inputs(tmp_path):
    x = records(200, seed=99).tensors[0]
    first = hash_of(tmp_path / "a", x)
    assert first["name"] == "RandomLabels(TensorDataset)"
    assert (first["records"], first["hashed_records"], len(first["sha256"])) == (200, 200, HASH_DIGITS)
    assert first["compared_with"] == "all training records"
    torch.manual_seed(1234)
    assert hash_of(tmp_path / "b", x, shuffle=True)["sha256"] == first["sha256"], "labels and order do not count"
    swapped = x.clone()
    swapped[[150, 151]] = x[[151, 150]]
    assert hash_of(tmp_path / "c", swapped)["sha256"] != first["sha256"], "the data set's own order counts, to its end"


class Noisy(TensorDataset):
    """As with random augmentation."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.01 * torch.randn_like(x), y


@pytest.mark.parametrize(
    ("training", "auxiliary", "who"),
    [(Noisy, TensorDataset, "training"), (TensorDataset, Noisy, "public")],
)
def test_comparing_records_that_differ_from_reading_to_reading_proves_nothing(tmp_path, training, auxiliary, who):
    aux = DataLoader(auxiliary(*records(200, seed=99).tensors), batch_size=50)
    data = DataLoader(training(*records().tensors), batch_size=12)
    fit(tmp_path, strategy(aux_dataloader=aux), data=data, max_steps=1)
    said = (
        f"all training records, which proves nothing: {who} records differ from one reading to the next, as with "
        "random augmentation"
    )
    found = card_in(tmp_path)["public_data"]
    assert found["compared_with"] == said
    assert (found["sha256"] is None) == (auxiliary is Noisy)
    assert ("differs from one reading to the next" in found["note"]) == (auxiliary is Noisy)
    assert f"none of the first 200 is among {said}" in (tmp_path / "privacy" / "privacy_card.html").read_text()


# Where the code comes from.


def git(directory, *arguments):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=directory, check=True, capture_output=True
    )


def test_the_revision_is_that_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert git_revision() == (None, None)
    git(tmp_path, "init")
    assert git_revision() == (None, None)
    script = tmp_path / "train.py"
    script.write_text("1")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-m", "x")
    revision, dirty = git_revision()
    assert len(revision) == 40
    assert dirty is False
    (tmp_path / "output.txt").write_text("not tracked")
    assert git_revision() == (revision, False)
    script.write_text("2")
    assert git_revision() == (revision, True)
    monkeypatch.setenv("PATH", "")
    assert git_revision() == (None, None)


class ProvesNothing(PrivacyAccount):
    def epsilon(self, delta=None):
        return math.inf


def test_figures_of_an_account_that_proves_nothing_are_not_private():
    plan = PrivacyPlan.make(
        GP(1.0), num_records=10, expected_batch_size=10, delta=1e-2, noise_multiplier=1e-5, steps=5, accountant="rdp"
    )
    card = run_card(PrivacyAccount(plan, steps=1), FACTS, "finished")
    assert card["guarantee"]["private"], "an absurd ε is still an ε"
    assert card["guarantee"]["epsilon_spent"]["pld"] == card["guarantee"]["epsilon_spent"]["rdp"] > 1e6
    card = run_card(ProvesNothing(plan, steps=2), FACTS, "finished")
    assert not card["guarantee"]["private"]
    assert card["guarantee"]["statement"] == "Not private: the accountant proves no finite ε."
