"""Weights bring along what they have cost, whichever calls of Lightning they went through."""

import copy
import json

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint

from lightning_gep.errors import ConfigurationError, LedgerError
from lightning_gep.strategy import origins
from lightning_gep.strategy.origins import ReleasedWeights, hashes_of, released_by
from tests.resumable import every_step, module, run
from tests.toys import Classifier, loader, strategy, trainer

OTHERS = "weights come from a private run that had made {} steps"


def saved_steps(path):
    state = torch.load(path, weights_only=True).get("lightning_gep")
    return None if state is None else state["account"]["steps"]


def validation(fit, what, path=None):
    fit.validate(what, loader(shuffle=False), ckpt_path=path, verbose=False)


def plain_trainer(tmp_path):
    return Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tmp_path)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Checkpoints of another run, after each of its steps."""
    directory = tmp_path_factory.mktemp("other")
    run(directory, strategy(), steps=3, callbacks=[every_step(directory)])
    return directory


@pytest.mark.parametrize("between", ["validate", "predict", "another trainer"])
def test_a_checkpoint_that_is_saved_by_hand_knows_its_run_whatever_came_between(between, tmp_path):
    fit, trained = trainer(tmp_path, strategy(), max_steps=4), module()
    fit.fit(trained, loader())
    data = loader(shuffle=False)
    if between == "another trainer":
        plain_trainer(tmp_path).validate(trained, data, verbose=False)
    else:
        getattr(fit, between)(trained, data, **({} if between == "predict" else {"verbose": False}))
    fit.save_checkpoint(tmp_path / "by_hand.ckpt")
    assert saved_steps(tmp_path / "by_hand.ckpt") == 4


def test_weights_that_were_loaded_to_look_at_are_saved_with_their_run(other, tmp_path):
    looking, seen = trainer(tmp_path, strategy()), module()
    for step in (2, 3, 1):
        validation(looking, seen, other / f"step={step}.ckpt")
        assert looking.strategy.privacy.steps == step
        looking.save_checkpoint(tmp_path / "copy.ckpt")
        assert saved_steps(tmp_path / "copy.ckpt") == step


def test_a_new_strategy_does_not_begin_at_zero_with_trained_weights(tmp_path):
    trained = module()
    trainer(tmp_path, strategy(), max_steps=4).fit(trained, loader())
    again = trainer(tmp_path, strategy(), max_steps=4)
    with pytest.raises(ConfigurationError, match=OTHERS.format(4)):
        again.fit(trained, loader())


def test_another_module_that_is_validated_does_not_change_the_run_of_the_first(other, tmp_path):
    fit, trained = trainer(tmp_path, strategy(), max_steps=4, max_epochs=-1), module()
    fit.fit(trained, loader())
    validation(fit, module(), other / "step=1.ckpt")
    fit.fit_loop.epoch_loop.max_steps = 6
    fit.fit(trained, loader())
    fit.save_checkpoint(tmp_path / "by_hand.ckpt")
    assert fit.strategy.privacy.steps == saved_steps(tmp_path / "by_hand.ckpt") == 6


class Mixes(Classifier):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((x - x.mean(0), y), batch_idx)


def test_a_refused_resume_of_another_module_does_not_take_the_account_of_the_first(other, tmp_path):
    fit, trained = trainer(tmp_path, strategy(), max_steps=4, max_epochs=-1), module()
    fit.fit(trained, loader())
    with pytest.raises(ConfigurationError, match="depends on the other records"):
        fit.fit(Mixes(), loader(), ckpt_path=other / "step=1.ckpt")
    with pytest.raises(ConfigurationError, match=OTHERS.format(4)):
        fit.fit(trained, loader())


class Renamed(Classifier):
    def __init__(self):
        super().__init__()
        self.another = torch.nn.Linear(2, 2)


def test_weights_that_could_be_loaded_in_part_only_are_not_trained_on_or_saved_as_private(other, tmp_path):
    fit, trained = trainer(tmp_path, strategy(), max_steps=4), Renamed()
    fit.fit(trained, loader())
    with pytest.raises(RuntimeError, match="Missing key"):
        validation(fit, trained, other / "step=1.ckpt")
    assert fit.strategy.privacy.steps == 4
    fit.save_checkpoint(tmp_path / "by_hand.ckpt")
    assert saved_steps(tmp_path / "by_hand.ckpt") is None
    with pytest.raises(ConfigurationError, match="was loaded only in part"):
        trainer(tmp_path, strategy()).fit(trained, loader())


def test_weights_of_a_checkpoint_without_privacy_state_may_know_the_data(tmp_path):
    plain = plain_trainer(tmp_path)
    plain.fit_loop.epoch_loop.max_steps = 2
    plain.fit(module(), loader())
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    fit, seen = trainer(tmp_path, strategy()), module()
    validation(fit, seen, tmp_path / "plain.ckpt")
    with pytest.raises(ConfigurationError, match="has no privacy state"):
        fit.fit(seen, loader())


def test_why_a_first_fit_failed_is_not_hidden_by_what_is_saved_then(tmp_path):
    (tmp_path / "privacy").write_text("a file where a folder should be")
    saving = OnExceptionCheckpoint(tmp_path / "error")
    with pytest.raises(LedgerError, match="No ledger can be kept"):
        trainer(tmp_path, strategy(), callbacks=[saving], enable_checkpointing=True).fit(module(), loader())
    (tmp_path / "privacy").unlink()
    with pytest.raises(ConfigurationError, match="before its first step, there is nothing to resume: fit without ckpt"):
        trainer(tmp_path, strategy()).fit(module(), loader(), ckpt_path=saving.ckpt_path)


# Copies of weights, which no call of Lightning has made.


def ledgers(*directories):
    return sorted(path.stem for directory in directories for path in directory.rglob("*.ledger"))


def three_steps(directory, trained):
    """Not seeded: the weights are those of no other test."""
    fit = trainer(
        directory,
        strategy(generator="system"),
        max_steps=3,
        callbacks=[every_step(directory)],
        enable_checkpointing=True,
    )
    fit.fit(trained, loader())
    return trained, directory, fit.strategy.privacy.run_id


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A module that was trained, its directory with a checkpoint of every step, and the name of its run."""
    return three_steps(tmp_path_factory.mktemp("released"), module())


class LoadsLate(Classifier):
    def on_train_start(self):
        self.load_state_dict(self.released)


def with_weights(state):
    new = module()
    new.load_state_dict(state)
    return new


def in_part_and_frozen(trained, directory):
    new = module()
    new.hidden.load_state_dict(trained.hidden.state_dict())
    new.hidden.requires_grad_(False)
    return new


def by_a_hook(trained, directory):
    new = LoadsLate()
    new.released = copy.deepcopy(trained.state_dict())
    return new


COPIES = {
    "copied": lambda trained, directory: copy.deepcopy(trained),
    "loaded": lambda trained, directory: with_weights(trained.state_dict()),
    "of an earlier step": lambda trained, directory: with_weights(
        torch.load(directory / "step=2.ckpt", weights_only=True)["state_dict"]
    ),
    "from a checkpoint": lambda trained, directory: Classifier.load_from_checkpoint(directory / "step=3.ckpt"),
    "in part and frozen": in_part_and_frozen,
    "converted and back": lambda trained, directory: copy.deepcopy(trained).double().float(),
    "by a hook": by_a_hook,
}


@pytest.mark.parametrize(("made", "known_by"), [*((made, "folder") for made in COPIES), ("copied", "process")])
def test_a_copy_of_released_weights_does_not_begin_at_zero(released, made, known_by, tmp_path, monkeypatch):
    trained, directory, run_id = released
    second, before = COPIES[made](trained, directory), ledgers(directory, tmp_path)
    if known_by == "folder":  # as in a process that knows nothing
        monkeypatch.setattr(origins, "RUNS_IN_THIS_PROCESS", set())
    used = trainer(directory if known_by == "folder" else tmp_path, strategy(), max_steps=2)
    said = rf"come from a private run that had made 3 steps \(.*{run_id}.*ckpt_path=.*trust_checkpoint=True"
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=said):
            used.fit(second, loader())
    assert used.strategy.privacy.steps == 0
    assert made == "by a hook" or ledgers(directory, tmp_path) == before, "nothing was begun"


def test_weights_that_a_run_left_as_they_were_are_not_its_own(tmp_path):
    public = Classifier()
    public.hidden.requires_grad_(False)
    three_steps(tmp_path, public)
    second = module()
    second.hidden.load_state_dict(public.hidden.state_dict())
    fit = trainer(tmp_path, strategy(), max_steps=2)
    fit.fit(second, loader())
    assert fit.strategy.privacy.steps == 2


def test_weights_of_a_run_on_other_records_may_be_built_on_and_the_card_says_so(released, tmp_path):
    trained, _, run_id = released
    used, second = strategy(trust_checkpoint=True), with_weights(trained.state_dict())
    second.out.requires_grad_(False)
    saving = every_step(tmp_path)
    fit = trainer(tmp_path, used, max_steps=2, callbacks=[saving], enable_checkpointing=True)
    with pytest.warns(UserWarning, match=rf"starts from weights of the private run {run_id}; trust_checkpoint=True"):
        fit.fit(second, loader(seed=2))
    assert used.privacy.steps == 2
    said = [line for line in json.loads((tmp_path / "privacy_card.json").read_text())["not_covered"] if run_id in line]
    assert len(said) == 1
    assert "share no training record" in said[0]
    # A frozen part is that of the first run still, which the second one knows.
    again = module()
    again.out.requires_grad_(False)
    resumed = strategy()
    trainer(tmp_path, resumed, max_steps=4).fit(again, loader(seed=2), ckpt_path=tmp_path / "step=2.ckpt")
    assert resumed.privacy.steps == 4
    assert resumed.privacy.builds_on == [run_id]


def tensors(seed=0, **shapes):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_a_hash_is_that_of_the_numbers():
    assert hashes_of({"w": torch.randn(8).bfloat16()})
    w = tensors(w=(3, 4))["w"]
    (expected,) = hashes_of({"w": w}).values()
    for same in (w.double(), w.clone().requires_grad_(), w.reshape(4, 3), w.t().contiguous().t()):
        assert hashes_of({"another name": same}) == {"another name": expected}
    other = w.clone()
    other[2, 3] = torch.nextafter(other[2, 3], torch.tensor(9.0))
    assert hashes_of({"w": other})["w"] != expected
    by_chance = {"few": w[0, :3], "constant": torch.ones(50), "none": w[:0], "whole": torch.arange(9), "text": "a"}
    assert not hashes_of(by_chance)


def test_runs_are_found_by_what_they_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(origins, "RUNS_IN_THIS_PROCESS", set())
    before = tensors(frozen=9, trained=9)
    released = ReleasedWeights(tmp_path / "a.ledger", hashes_of(before).values())
    after = {"frozen": before["frozen"], **tensors(1, trained=9)}
    released.add(after)
    size = released.path.stat().st_size
    released.add(after)
    assert released.path.stat().st_size == size, "what is known is not written again"

    def found(these, *besides):
        runs = released_by(hashes_of(these), tmp_path, besides=besides)
        return [(ledger.stem, name) for ledger, name in runs.items()]

    assert found(before) == []
    assert found({"part": before["frozen"], "copy": after["trained"]}) == [("a", "copy")]
    assert found(after, "a") == []
    later = tensors(2, trained=9)
    released.add(later)
    assert found(after) == found(later) == [("a", "trained")]
    assert not released_by(hashes_of(after), tmp_path / "another", besides=())
    origins.note_here(tmp_path / "a.ledger")
    (ledger,) = released_by(hashes_of(after), tmp_path / "another", besides=())
    assert ledger.stem == "a"
    ReleasedWeights(tmp_path / "b.ledger", ()).add(later)  # by the same seed
    assert found(later) == [("a", "trained"), ("b", "trained")]
    assert found(later, "b") == []


def test_a_torn_line_hides_nothing_that_is_written_later(tmp_path):
    first, second = tensors(w=9), tensors(1, w=9)
    path = tmp_path / "a.weights"
    ReleasedWeights(tmp_path / "a.ledger", ()).add(first)
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        ReleasedWeights(tmp_path / "a.ledger", ()).add(second)
        assert released_by(hashes_of(second), tmp_path, besides=())
    path.write_bytes(b"\xff\xfe\x00" + whole)
    assert released_by(hashes_of(first), tmp_path, besides=())
