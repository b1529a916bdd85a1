"""Checkpoints, resumes and kills: the count never falls, the draws never repeat, the seeded run repeats exactly."""

import re
import signal
import warnings
from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint, OnExceptionCheckpoint

from lightning_gep.errors import BudgetExhaustedError, ConfigurationError, LedgerError
from lightning_gep.privacy.accounting import epsilon
from lightning_gep.strategy.data import EmptyBatch
from tests.resumable import STEPS, every_step, found_in, module, run, watched_secrets
from tests.toys import Gradients, loader, strategy, trainer, weights


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The directory of a run of three steps, for resumes that are refused and leave nothing there."""
    directory = tmp_path_factory.mktemp("begun")
    run(directory, strategy(), steps=3, callbacks=[every_step(directory / "all")])
    return directory


@pytest.mark.parametrize(
    ("mechanism", "steps", "settings"),
    [("gep", (1, 4, 7), {}), ("gep", (4,), {"residual_memory": 0.8}), ("gp", (5,), {}), ("spectral", (3,), {})],
    ids=["gep", "gep with a memory", "gp", "spectral"],
)
def test_a_seeded_run_resumes_bit_for_bit(tmp_path, mechanism, steps, settings):
    using = {"mechanism": mechanism, **settings}
    unbroken, _ = run(tmp_path, strategy(**using), callbacks=[every_step(tmp_path / "all")])
    for step in steps:
        checkpoint = tmp_path / "all" / f"step={step}.ckpt"
        resumed, fit = run(tmp_path, strategy(**using), checkpoint=checkpoint)
        assert torch.equal(weights(resumed), weights(unbroken)), f"resumed after step {step}"
        assert fit.global_step == STEPS


class Draws(Gradients):
    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches.append(batch.open())


def test_two_resumes_from_one_checkpoint_draw_different_batches_and_noise(tmp_path):
    run(tmp_path, strategy(generator="system"), steps=3, callbacks=[every_step(tmp_path / "all")])
    seen = []
    for _ in range(2):
        draws = Draws()
        checkpoint = tmp_path / "all" / "step=3.ckpt"
        _, _fit = run(tmp_path, strategy(generator="system"), checkpoint=checkpoint, callbacks=[draws])
        seen.append(draws)
    for a, b in zip(seen[0].seen, seen[1].seen, strict=True):
        assert not torch.equal(a, b)
    pairs = [(a, b) for a, b in zip(*(d.batches for d in seen), strict=True) if EmptyBatch not in (type(a), type(b))]
    assert pairs
    assert not any(a[0].shape == b[0].shape and torch.equal(a[0], b[0]) for a, b in pairs)


def test_steps_lost_in_a_crash_are_counted_and_run_again(tmp_path):
    _, _first = run(tmp_path, strategy(generator="system"), steps=6, callbacks=[every_step(tmp_path / "all")])
    checkpoint = tmp_path / "all" / "step=2.ckpt"
    _, second = run(tmp_path, strategy(generator="system"), steps=6, checkpoint=checkpoint)
    assert second.global_step == 6
    assert second.strategy.privacy.steps == 6 + 4


def test_starting_anew_beside_an_unfinished_run_is_warned_of(tmp_path, begun):
    def stop(trainer, *_):
        if trainer.global_step == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(tmp_path, strategy(), callbacks=[every_step(tmp_path), LambdaCallback(on_train_batch_end=stop)])
    with pytest.warns(UserWarning, match=f"made 2 of {STEPS} steps, and this fit starts anew.*save_last=True"):
        run(tmp_path, strategy(), checkpoint="last", callbacks=[ModelCheckpoint(tmp_path)])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The last run")
        run(tmp_path, strategy(), steps=1)  # what went before has ended
        (ledger,) = sorted((begun / "privacy").glob("*.ledger"))[:1]
        (tmp_path / "privacy" / "damaged.ledger").write_bytes(ledger.read_bytes().replace(b"1", b"2"))
        run(tmp_path, strategy(), steps=1)


def test_an_interruption_says_how_to_continue(tmp_path, caplog):
    def interrupt(trainer, *_):
        if trainer.global_step == 2:
            raise KeyboardInterrupt

    handler = signal.getsignal(signal.SIGINT)
    callbacks = [every_step(tmp_path), LambdaCallback(on_train_batch_end=interrupt)]
    try:
        with caplog.at_level("INFO", logger="lightning.pytorch"), pytest.raises(SystemExit):
            run(tmp_path, strategy(), callbacks=callbacks)
    finally:
        signal.signal(signal.SIGINT, handler)  # which Lightning has changed
    (said,) = (record.message for record in caplog.records if record.message.startswith("Interrupted"))
    assert f"after 2 of {STEPS} steps" in said
    _, second = run(tmp_path, strategy(), checkpoint=re.search("ckpt_path='(.*)'", said)[1])
    assert second.global_step == STEPS


def test_lost_steps_shorten_a_run_with_a_target(tmp_path):
    settings = {"epsilon": 6.0, "generator": "system"}
    _, _first = run(tmp_path, strategy(**settings), steps=6, callbacks=[every_step(tmp_path / "all")])
    with pytest.raises(BudgetExhaustedError):
        run(tmp_path, strategy(**settings), steps=6, checkpoint=tmp_path / "all" / "step=4.ckpt")


def test_a_finished_run_continues_with_a_larger_target_and_its_own_noise(tmp_path):
    _, first = run(tmp_path, strategy(epsilon=6.0), steps=4, callbacks=[every_step(tmp_path / "all")])
    checkpoint = tmp_path / "all" / "step=4.ckpt"
    larger = strategy(epsilon=9.0)
    _, second = run(tmp_path, larger, steps=6, checkpoint=checkpoint)
    account = larger.privacy
    assert account.noise_multiplier == first.strategy.privacy.noise_multiplier
    assert (second.global_step, account.steps, account.report()["target_epsilon"]) == (6, 6, 9.0)
    event = account.plan.event
    assert account.accounted_epsilon() == pytest.approx(epsilon([(event, 6)], account.delta, "rdp"))
    with pytest.raises(BudgetExhaustedError, match="continue from a checkpoint with a larger epsilon"):
        run(tmp_path, strategy(epsilon=9.0), steps=40, checkpoint=checkpoint)
    with pytest.raises(ConfigurationError, match=r"target_epsilon: 6\.0 → 5\.0"):
        run(tmp_path, strategy(epsilon=5.0), checkpoint=checkpoint)


def test_weights_only_checkpoints_keep_the_privacy_state(tmp_path):
    callback = every_step(tmp_path / "all", save_weights_only=True)
    _, fit = run(tmp_path, strategy(), steps=2, callbacks=[callback])
    saved = torch.load(tmp_path / "all" / "step=2.ckpt", weights_only=True)["lightning_gep"]
    assert saved["account"]["steps"] == 2
    assert saved["account"]["run_id"] == fit.strategy.privacy.run_id
    alone = trainer(tmp_path, strategy())
    alone.validate(module(), loader(shuffle=False), ckpt_path=tmp_path / "all" / "step=2.ckpt", verbose=False)
    assert alone.strategy.privacy.report() == fit.strategy.privacy.report()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"delta": 1e-4}, "delta: 0.001 → 0.0001"),
        ({"mechanism": "bgep"}, "release: "),
        ({"epsilon": 3.0, "noise_multiplier": None}, "target_epsilon: None → 3.0"),
    ],
)
def test_changing_a_privacy_setting_is_an_error_that_says_which(begun, change, named):
    with pytest.raises(ConfigurationError, match=f"differ from those of the checkpoint .*{named}"):
        run(begun, strategy(**change), checkpoint=begun / "all" / "step=2.ckpt")


@pytest.mark.parametrize(
    "change",
    [{"groups": "all"}, {"subspace": "power"}, {"microbatch_size": 3, "gradients": "loop", "refresh_every": 4}],
)
def test_what_costs_no_privacy_may_change_and_a_basis_that_does_not_fit_begins_anew(tmp_path, change):
    run(tmp_path, strategy(), steps=3, callbacks=[every_step(tmp_path / "all")])
    checkpoint = tmp_path / "all" / "step=2.ckpt"
    with pytest.warns(UserWarning, match="a new one is computed") if "groups" in change else nullcontext():
        _, fit = run(tmp_path, strategy(**change), steps=4, checkpoint=checkpoint)
    assert fit.strategy.privacy.steps == 5, "3 before, 2 after"


def test_a_missing_ledger_is_an_error_with_an_explicit_override(tmp_path):
    _, _first = run(tmp_path, strategy(), steps=2, callbacks=[every_step(tmp_path / "all")])
    next((tmp_path / "privacy").glob("*.ledger")).unlink()
    checkpoint = tmp_path / "all" / "step=2.ckpt"
    refused, trained = trainer(tmp_path, strategy(), max_steps=5), module()
    for path in (checkpoint, None):
        with pytest.raises(LedgerError, match=r"of this run is missing.*trust_checkpoint=True"):
            refused.fit(trained, loader(), ckpt_path=path)
    assert refused.strategy.privacy.steps == 2, "it does not become a new account"
    used = strategy(trust_checkpoint=True)
    run(tmp_path, used, steps=3, checkpoint=checkpoint)
    assert used.privacy.steps == 3


def test_a_run_that_was_moved_finds_its_ledger(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    _, _first = run(old, strategy(), steps=3, callbacks=[every_step(old / "checkpoints")])
    old.rename(new)
    used = strategy()
    run(tmp_path / "elsewhere", used, steps=4, checkpoint=new / "checkpoints" / "step=2.ckpt")
    assert used.privacy.steps == 3 + 2


def test_no_file_of_a_run_contains_the_sampling_secret(tmp_path, monkeypatch):
    secrets = watched_secrets(monkeypatch)
    run(tmp_path, strategy(generator="system"), steps=3, callbacks=[every_step(tmp_path / "all")])
    assert secrets
    assert list(tmp_path.rglob("*.ckpt"))
    for secret in secrets:
        assert found_in(tmp_path, secret) == []
    (tmp_path / "leak.txt").write_text(secrets[0].reveal().hex())
    assert found_in(tmp_path, secrets[0]), "the search finds what is there"


def test_a_refused_resume_does_not_forget_what_its_weights_have_cost(begun, tmp_path):
    used, trained = strategy(noise_multiplier=2.0), module()
    fit = trainer(tmp_path, used, max_steps=5)
    with pytest.raises(ConfigurationError, match="privacy settings differ"):
        fit.fit(trained, loader(), ckpt_path=begun / "all" / "step=3.ckpt")
    with pytest.raises(ConfigurationError, match="privacy settings differ"):
        fit.fit(trained, loader())
    assert used.privacy.steps == 3


def resumed(fit, path):
    fit.fit(module(), loader(), ckpt_path=path)


def validated_and_then_trained(fit, path):
    own = module()
    fit.validate(own, loader(), ckpt_path=path, verbose=False)
    fit.fit(own, loader())


@pytest.mark.parametrize(
    ("use", "message", "begins_at"),
    [(resumed, "privacy settings differ", 3), (validated_and_then_trained, "had made 3 steps, so a fit", 0)],
)
def test_what_is_saved_when_a_fit_is_refused_keeps_the_account_of_its_weights(use, message, begins_at, tmp_path):
    run(tmp_path, strategy(), steps=3, callbacks=[every_step(tmp_path / "all")])
    saving = OnExceptionCheckpoint(tmp_path / "refused")
    settings = {"max_steps": 5, "callbacks": [saving], "enable_checkpointing": True}
    with pytest.raises(ConfigurationError, match=message):
        use(trainer(tmp_path, strategy(noise_multiplier=2.0), **settings), tmp_path / "all" / "step=3.ckpt")
    again = strategy()
    trainer(tmp_path, again, max_steps=5).fit(module(), loader(), ckpt_path=saving.ckpt_path)
    assert again.privacy.steps == 3 + (5 - begins_at)


def test_a_resume_without_privacy_state_does_not_forget_weights_that_were_validated(begun, tmp_path):
    used, trained = strategy(), module()
    fit = trainer(tmp_path, used, max_steps=5)
    fit.validate(trained, loader(), ckpt_path=begun / "all" / "step=3.ckpt", verbose=False)
    torch.save({"state_dict": module().state_dict()}, tmp_path / "public.ckpt")
    with pytest.raises(ConfigurationError, match="has no privacy state"):
        fit.fit(trained, loader(), ckpt_path=tmp_path / "public.ckpt")
    with pytest.raises(ConfigurationError, match="had made 3 steps, so a fit"):
        fit.fit(trained, loader())


def test_a_checkpoint_of_another_run_that_was_validated_in_between_is_not_forgotten(tmp_path):
    run(tmp_path / "other", strategy(), steps=5, callbacks=[every_step(tmp_path / "other")])
    used, trained = strategy(), module()
    fit = trainer(tmp_path, used, max_epochs=1, callbacks=[every_step(tmp_path / "own")], enable_checkpointing=True)
    fit.fit(trained, loader())
    fit.test(trained, loader(shuffle=False), ckpt_path=tmp_path / "own" / "step=2.ckpt", verbose=False)
    fit.fit_loop.max_epochs = 2
    fit.fit(trained, loader())
    assert used.privacy.steps == 10, "its own checkpoint costs nothing more"
    fit.validate(trained, loader(shuffle=False), ckpt_path=tmp_path / "other" / "step=5.ckpt", verbose=False)
    fit.fit_loop.max_epochs = 3
    with pytest.raises(ConfigurationError, match=r"weights come from a private run .* made 5 steps"):
        fit.fit(trained, loader())
