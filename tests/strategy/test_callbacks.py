import copy
import json
import pickle
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.strategy.callbacks import PrivacyBudget, PrivacyMonitor
from lightning_gep.strategy.logs import recorded_logs
from tests.toys import Classifier, loader, strategy, trainer


def logged_names(directory):
    (path,) = directory.rglob("metrics.csv")
    return set(path.read_text().splitlines()[0].split(",")), path.read_text()


def fitted(tmp_path, using, callbacks, **settings):
    fit = trainer(
        tmp_path, using, callbacks=callbacks, logger=CSVLogger(tmp_path), log_every_n_steps=1, max_steps=5, **settings
    )
    fit.fit(Classifier(), loader(), loader(shuffle=False))
    return fit


def test_the_monitor_logs_the_privacy_state_and_nothing_private(tmp_path):
    fit = fitted(tmp_path, strategy(epsilon=5.0, generator="system"), [PrivacyMonitor()])
    names, _ = logged_names(tmp_path)
    expected = {"epsilon", "delta", "noise_multiplier", "steps", "remaining_epsilon", "private"}
    assert {name.removeprefix("privacy/") for name in names if name.startswith("privacy/")} == expected
    assert {name for name in names if not name.startswith("privacy/")} == {"epoch", "step", "val/accuracy"}
    assert float(fit.callback_metrics["privacy/epsilon"]) == pytest.approx(fit.strategy.privacy.epsilon())
    assert set(fit.progress_bar_metrics) == {"ε"}
    shown = float(rounded_up(fit.strategy.privacy.epsilon()))
    assert float(fit.progress_bar_metrics["ε"]) == pytest.approx(shown, abs=1e-6)  # the bar itself may round down


def test_the_bar_shows_no_infinite_epsilon(tmp_path):
    fit = fitted(tmp_path, strategy(mechanism="gp", noise_multiplier=0.0), [PrivacyMonitor()])
    assert fit.progress_bar_metrics == {}
    assert float(fit.callback_metrics["privacy/epsilon"]) == float("inf")


def test_what_training_step_logs_is_dropped_unless_asked_for_and_then_named(tmp_path):
    fitted(tmp_path / "quiet", strategy(), [])
    assert "train" not in logged_names(tmp_path / "quiet")[1]
    fitted(tmp_path / "loud", strategy(log_nonprivate=True), [PrivacyMonitor()])
    names, _ = logged_names(tmp_path / "loud")
    assert "nonprivate/train/loss" in names
    assert "train/loss" not in names
    wanted = {"gradient_norm", "residual_norm", "clipped_embeddings", "clipped_residuals", "stable_rank"}
    assert {f"nonprivate/{name}" for name in wanted | {"projection_error", "residual_share"}} <= names


def test_the_budget_ends_the_run_cleanly(tmp_path):
    used = strategy(noise_multiplier=1.0)
    fit = trainer(tmp_path, used, callbacks=[PrivacyBudget(6.0)], max_epochs=50)
    fit.fit(Classifier(), loader())
    assert 0 < used.privacy.steps < 250
    assert used.privacy.accounted_epsilon() <= 6.0
    assert not used.privacy.allows_another_step(6.0)


@pytest.mark.parametrize("callback", [PrivacyMonitor, PrivacyBudget])
def test_without_the_strategy_they_say_so(tmp_path, callback):
    fit = trainer(tmp_path, "auto", callbacks=[callback()], max_steps=1)
    with pytest.raises(ConfigurationError, match=f"{callback.__name__} needs a private run"):
        fit.fit(Classifier(), loader())


class LogsAtTheEndOfAnEpoch(Classifier):
    """The usual pattern: training_step keeps what it computed, a later hook logs it."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        self.log("epoch_loss", sum(self.losses) / len(self.losses))
        self.log_dict({"losses": float(len(self.losses))}, prog_bar=True)
        self.losses.clear()


class LogsWhatIsKept(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        assert float(outputs["loss"]) == 0.0, "the private loss reaches no callback"
        self.log("sum", sum(pl_module.losses), on_step=True, on_epoch=True)
        pl_module.log("count", float(len(pl_module.losses)))


def logs_of(tmp_path, module, callbacks=(), **settings):
    fit = trainer(
        tmp_path, strategy(**settings), callbacks=list(callbacks), logger=CSVLogger(tmp_path), log_every_n_steps=1
    )
    fit.fit(module, loader(batch_size=30), loader(shuffle=False))
    return fit, logged_names(tmp_path)[0]


def test_what_later_hooks_and_callbacks_log_in_training_is_dropped_with_a_notice(tmp_path, caplog):
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        fit, names = logs_of(tmp_path, LogsAtTheEndOfAnEpoch(), [LogsWhatIsKept(), PrivacyMonitor()])
    assert {name for name in names if not name.startswith("privacy/")} == {"epoch", "step", "val/accuracy"}
    assert {name for name in fit.callback_metrics if not name.startswith("privacy/")} == {"val/accuracy"}
    for name, hook in {"epoch_loss": "on_train_epoch_end", "sum": "on_train_batch_end"}.items():
        assert caplog.text.count(f"{hook} logs {name} in training, which may depend on private records") == 1
    assert "what training_step writes to losses, of a few public records instead of private ones" in caplog.text


def test_or_passed_on_under_a_name_that_says_so(tmp_path):
    _, names = logs_of(tmp_path, LogsAtTheEndOfAnEpoch(), [LogsWhatIsKept()], log_nonprivate=True)
    logged = {"epoch_loss", "losses", "sum_step", "sum_epoch", "count"}
    assert {f"nonprivate/{name}" for name in logged} <= names
    assert not logged & names
    card = json.loads(next(tmp_path.rglob("privacy_card.json")).read_text())
    assert {"epoch_loss", "losses", "sum", "count", "train/loss"} <= set(card["logs"]["left_unprotected"])


@pytest.mark.parametrize(
    ("decider", "log_nonprivate"), [(EarlyStopping, True), (lambda name: ModelCheckpoint(monitor=name), False)]
)
def test_nothing_decides_by_what_later_hooks_log(tmp_path, decider, log_nonprivate):
    with pytest.raises(ConfigurationError, match=r"monitors 'epoch_loss', which is computed from private records"):
        trainer(
            tmp_path,
            strategy(log_nonprivate=log_nonprivate),
            callbacks=[decider("epoch_loss")],
            enable_checkpointing=True,
        ).fit(LogsAtTheEndOfAnEpoch(), loader())


def test_after_the_fit_the_module_logs_as_before_and_can_be_copied_during_it(tmp_path):
    class Copies(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            copy.deepcopy(pl_module.hidden)
            self.saved = pickle.dumps(pl_module)
            self.copied = copy.deepcopy(pl_module.log)

    module, copies = Classifier(partial(torch.optim.SGD, lr=0.1)), Copies()
    logs_of(tmp_path, module, [copies])
    assert "log" not in vars(module)
    assert "log_dict" not in vars(module)
    assert pickle.loads(copies.saved).out.weight.shape == module.out.weight.shape
    plain = trainer(tmp_path, "auto", max_steps=1)
    plain.fit(module, loader())
    assert "train/loss" in plain.callback_metrics


class LogsPastLightning(Classifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.logger.log_metrics({"direct": loss.item()})
        self.logger.experiment.log_metrics({"experiment": loss.item()})
        return loss


def test_what_training_step_gives_to_the_logger_itself_does_not_reach_it(tmp_path):
    _, names = logs_of(tmp_path, LogsPastLightning())
    assert names == {"epoch", "step", "val/accuracy"}


@pytest.mark.parametrize("name", ["performance/train_loss", "privacy/loss"])
def test_a_name_like_our_own_is_no_pass(tmp_path, name):
    class Disguised(Classifier):
        def on_train_epoch_end(self):
            self.log(name, 1.0)

    fit, names = logs_of(tmp_path / "logged", Disguised())
    assert name not in names | set(fit.callback_metrics)
    callbacks = [ModelCheckpoint(monitor=name)]
    with pytest.raises(ConfigurationError, match=f"monitors '{name}'"):
        trainer(tmp_path, strategy(), callbacks=callbacks, enable_checkpointing=True).fit(Disguised(), loader())


def test_after_a_failure_between_microbatches_the_loggers_are_those_of_the_user(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("no more")

    monkeypatch.setattr("lightning_gep.algorithm.gep.clip_factors", fails)
    logger = CSVLogger(tmp_path)
    fit = trainer(tmp_path, strategy(), logger=logger)
    with pytest.raises(RuntimeError, match="no more") as raised:
        fit.fit(Classifier(), loader())
    assert fit.loggers == [logger], raised


def test_nothing_gets_past_an_outer_recorder_when_an_inner_one_ends():
    module = Classifier()
    with recorded_logs(module) as outer:
        with recorded_logs(module) as inner:
            module.log("first", 1.0, True)
            module.log_dict({"second": 2.0, "third": 3.0})
        module.log("fourth", 4.0)
    assert inner.names == ["first", "second", "third"]
    assert inner.entries[0] == ("first", 1.0, {"prog_bar": True})
    assert outer.names == ["fourth"]
    assert "log" not in vars(module)
