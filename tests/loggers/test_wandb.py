import os
import subprocess
import sys
import time

import pytest
import wandb
from hydra.utils import instantiate
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import CSVLogger, WandbLogger

from lightning_gep.cli.configs import composed
from lightning_gep.errors import ConfigurationError
from lightning_gep.loggers.wandb import (
    PrivateWandbLogger,
    finish_runs,
    log_outcome,
)
from lightning_gep.reporting.records import RunRecord
from lightning_gep.strategy.callbacks import PerformanceMonitor, PrivacyMonitor
from tests.toys import Classifier, loader, strategy, trainer
from tests.wandb_files import offline, written_runs  # noqa: F401

pytestmark = pytest.mark.usefixtures("offline")

PRIVACY = {f"privacy/{n}" for n in ("epsilon", "remaining_epsilon", "delta", "noise_multiplier", "steps", "private")}
PERFORMANCE = {f"performance/{n}" for n in ("steps_per_second", "records_per_second", "peak_memory_mb")}
ALWAYS = PRIVACY | PERFORMANCE | {"val/accuracy", "epoch", "trainer/global_step"}


class Tested(Classifier):
    __test__ = False

    def test_step(self, batch, batch_idx):
        self.log("test/accuracy", 0.75)


class Talkative(Tested):
    """Prints, while it trains, what must not be captured."""

    def on_train_batch_end(self, *_):
        print("a line for the console")


def train(directory, logger, module=None, settings=None, callbacks=(), **arguments):
    fit = trainer(
        directory,
        strategy(epsilon=5.0, **(settings or {})),
        logger=logger,
        callbacks=[PrivacyMonitor(), PerformanceMonitor(), *callbacks],
        log_every_n_steps=1,
        **arguments,
    )
    module = module or Tested()
    fit.fit(module, loader(), loader(shuffle=False))
    fit.test(module, loader(shuffle=False), verbose=False)
    return fit


def everything_below(directory):
    written_runs(directory)  # waits for what W&B still writes
    return b"\n".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def test_a_job_is_one_run_with_exactly_what_may_be_known(tmp_path, capfd):
    logger = PrivateWandbLogger(tmp_path / "job", job_type="gep", tags=["ours"])
    logger.log_hyperparams({"seed": 0, "mechanism": {"k": 6, "split": [1.0, 2.0]}, "sweep": None})
    report = train(tmp_path / "job", logger, Talkative()).strategy.privacy.report()
    log_outcome([logger], report, **{"test/accuracy": 0.75, "performance/training_seconds": 2.0})
    finish_runs([logger])
    assert "a line for the console" in capfd.readouterr().out, "it was printed"

    (run,) = written_runs(tmp_path)
    assert run.keys == ALWAYS | {"test/accuracy"}
    assert run.config == {"_wandb": {}, "seed": 0, "mechanism": {"k": 6, "split": [1.0, 2.0]}, "sweep": None}
    assert (run.run.project, run.run.display_name, run.run.run_group) == ("lightning-gep", "job", "")
    assert (run.run.job_type, list(run.run.tags)) == ("gep", ["ours"])
    assert run.exit_code == 0
    of_the_account = {f"privacy/{name}" for name in report}
    at_the_end = {"test/accuracy", "performance/training_seconds"}
    assert {key for key in run.summary if not key.startswith("_")} == run.keys | of_the_account | at_the_end
    assert run.summary["privacy/epsilon"] == pytest.approx(report["epsilon"])
    assert run.summary["privacy/steps"] == 10
    assert run.summary["test/accuracy"] == 0.75

    # Neither console nor code nor the machine: no output, stats, environment or files.
    assert run.kinds - {"config"} == {"header", "run", "telemetry", "metric", "history", "summary", "exit"}
    assert (run.run.host, run.run.HasField("git")) == ("", False)
    assert not [path for path in (run.path.parent / "files").rglob("*") if path.is_file()]
    kept = everything_below(tmp_path / "job" / "wandb")
    assert b"val/accuracy" in kept
    for private in (b"a line for the console", b"train/loss", b"nonprivate"):
        assert private not in kept


SLOW = LambdaCallback(on_train_batch_end=lambda *_: time.sleep(0.2))
"""Steps that take long, as those with many records do."""


def test_rows_do_not_tell_how_long_a_step_took(tmp_path):
    logger = PrivateWandbLogger(tmp_path / "job")
    train(tmp_path / "job", logger, callbacks=[SLOW])
    finish_runs([logger])
    (run,) = written_runs(tmp_path)
    first, second = ([row["_runtime"] for row in run.rows if row["epoch"] == epoch] for epoch in (0, 1))
    for times in (first, second):
        assert len(times) > 5
        assert max(times) - min(times) < 0.5, "five steps took twice that"
    assert min(second) - max(first) > 0.5


def test_a_run_that_was_not_finished_is_never_continued_by_another_job(tmp_path):
    first, second = PrivateWandbLogger(tmp_path / "a"), PrivateWandbLogger(tmp_path / "b")
    first.log_hyperparams({"job": "a"})
    with pytest.raises(ConfigurationError, match=rf"id {first.version}\) is in progress"):
        second.log_hyperparams({"job": "b"})
    finish_runs([first, second])
    assert [run.config["job"] for run in written_runs(tmp_path)] == ["a"]


def test_a_resumed_job_continues_its_run(tmp_path):
    ids = []
    for attempt in (1, 2):
        logger = PrivateWandbLogger(tmp_path / f"place{attempt}" / "job")
        logger.log_hyperparams({"attempt": attempt})
        ids.append(logger.version)
        finish_runs([logger], failed=attempt == 1)
        if attempt == 1:
            (tmp_path / "place1").rename(tmp_path / "place2")  # also on another machine
    runs = written_runs(tmp_path)
    assert ids[0] == ids[1]
    assert {run.run.run_id for run in runs} == set(ids)
    assert all(run.run.resume for run in runs)


def test_the_card_is_an_artifact(tmp_path):
    logger, card = PrivateWandbLogger(tmp_path / "job"), tmp_path / "checkpoints"
    card.mkdir()
    for name in ("privacy_card.json", "privacy_card.html", "last.ckpt"):
        (card / name).write_text("{}")
    log_outcome([CSVLogger(tmp_path), logger], {"private": True}, card)
    finish_runs([logger])
    (run,) = written_runs(tmp_path)
    (artifact,) = run.artifacts
    assert (artifact.type, artifact.name) == ("privacy-card", f"privacy-card-{run.run.run_id}")
    assert sorted(entry.path for entry in artifact.manifest.contents) == ["privacy_card.html", "privacy_card.json"]


@pytest.mark.parametrize(("kind", "log"), [(PrivateWandbLogger, "gradients"), (WandbLogger, "all")])
def test_gradients_cannot_be_watched(tmp_path, monkeypatch, kind, log):
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger, module = kind(save_dir=tmp_path), Tested()

    def watched_training():
        logger.watch(module, log=log)
        train(tmp_path, logger, module, max_epochs=1)

    with pytest.raises(ConfigurationError, match="before the noise"):
        watched_training()
    finish_runs([logger], failed=True)
    assert wandb.run is None
    assert b"gradients/" not in everything_below(tmp_path)


def test_without_an_account_it_is_offline(tmp_path):
    logger = PrivateWandbLogger(tmp_path)
    logger.log_hyperparams({})
    assert logger.experiment.offline
    finish_runs([logger])
    assert len(written_runs(tmp_path)) == 1
    assert "WANDB_MODE" not in os.environ, "the next job decides for itself"


class BeganError(Exception):
    """Instead of a run that would look for the network."""


@pytest.mark.parametrize(
    ("key", "mode", "asked", "expected"),
    [
        ("k" * 40, None, None, "online"),
        ("k" * 40, None, True, "offline"),
        (None, None, False, "online"),
        (None, "disabled", None, None),
        (None, "offline", False, "online"),
    ],
)
def test_who_decides_whether_it_is_online(tmp_path, monkeypatch, key, mode, asked, expected):
    for name, value in (("WANDB_API_KEY", key), ("WANDB_MODE", mode)):
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_SILENT", "true")  # or it asks the server for the name to greet
    wandb.teardown()  # it has read the environment already
    begun = {}

    def init(**arguments):
        begun.update(arguments)
        raise BeganError

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(BeganError):
        PrivateWandbLogger(tmp_path, offline=asked).log_hyperparams({})
    assert begun.get("mode") == expected
    assert begun["resume"] == "allow"


def test_other_processes_begin_no_run(tmp_path, monkeypatch):
    from lightning.pytorch.utilities import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = PrivateWandbLogger(tmp_path)
    logger.log_hyperparams({"a": 1})
    logger.log_metrics({"a": 1.0, "epoch": 0}, 0)
    log_outcome([logger], {"private": True})
    finish_runs([logger])
    assert not (tmp_path / "wandb").exists()


def test_names_come_from_the_records_or_from_the_user(tmp_path):
    RunRecord("privacy.epsilon=2").write(tmp_path / "08-00-00")
    logger = PrivateWandbLogger(tmp_path / "08-00-00")
    logger.log_hyperparams({})
    finish_runs([logger])
    names = {"name": "mine", "group": "ours", "project": "p", "job_type": "j", "tags": ["t"], "entity": "e"}
    logger = PrivateWandbLogger(tmp_path / "own", notes="a note", **names)
    logger.log_hyperparams({})
    finish_runs([logger])
    first, own = (run.run for run in written_runs(tmp_path))
    assert (first.display_name, first.run_group) == ("privacy.epsilon=2", "")
    assert (own.display_name, own.run_group, own.project, own.job_type) == ("mine", "ours", "p", "j")
    assert (list(own.tags), own.entity, own.notes) == (["t"], "e", "a note")


def test_without_wandb_it_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'lightning-gep\[wandb\]'"):
        PrivateWandbLogger(tmp_path)
    finish_runs([CSVLogger(tmp_path)])  # other loggers do not need it


def test_the_config_makes_it_beside_the_csv(tmp_path):
    config = composed(["logger=wandb", "privacy.epsilon=2"], tmp_path / "job")
    loggers = [instantiate(entry) for entry in config.logger.values()]
    assert [type(logger) for logger in loggers] == [CSVLogger, PrivateWandbLogger]
    log_outcome(loggers, {"private": False, "epsilon": float("inf"), "target_epsilon": None})
    finish_runs(loggers)
    (run,) = written_runs(tmp_path)
    assert (run.run.job_type, list(run.run.tags)) == ("gep", ["gep", "epsilon=2"])
    assert run.summary["privacy/epsilon"] == float("inf")
    assert "privacy/target_epsilon" not in run.summary


@pytest.mark.slow
def test_every_job_of_a_real_sweep_is_a_run_with_exactly_these_keys(tmp_path):
    """What gep-train really wrote: two jobs of one process, one of them asked to log what is not private."""
    command = [sys.executable, "-m", "lightning_gep.cli.train", "-m", "privacy.log_nonprivate=false,true", "sweep=it"]
    short = ["trainer.max_epochs=1", "mechanism.k=20", "privacy.accountant=rdp", "logger=wandb"]
    done = subprocess.run([*command, *short], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {run.run.display_name: run for run in written_runs(tmp_path / "sweeps")}
    quiet, asked = (jobs[f"privacy.log_nonprivate={asked}"] for asked in (False, True))
    assert len(jobs) == 2
    assert quiet.run.run_id != asked.run.run_id
    assert quiet.keys == ALWAYS | {"val/loss", "test/accuracy"}
    more = asked.keys - quiet.keys
    assert "nonprivate/train/loss" in more
    assert all(key.startswith("nonprivate/") for key in more)
    assert b"train/loss" not in everything_below(quiet.path.parent)
    assert b"train/loss" not in everything_below(asked.path.parent).replace(b"nonprivate/train/loss", b"")
    for run in jobs.values():
        assert (run.run.run_group, run.run.job_type, run.exit_code) == ("it", "gep", 0)
        assert run.config["privacy"]["epsilon"] == 8.0
        assert run.summary["privacy/steps"] == 5
        assert 0 <= run.summary["test/accuracy"] <= 1
        assert [artifact.type for artifact in run.artifacts] == ["privacy-card"]
