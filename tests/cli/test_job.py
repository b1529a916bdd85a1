import math
import os

import pytest

from lightning_gep.cli import configs
from lightning_gep.cli.console import summary_rows
from lightning_gep.cli.job import JobProgress, changed_settings, clean_environment, train
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy import ledger
from lightning_gep.reporting.records import RunRecord, is_locked, locked, read_metrics

SHORT = (
    "trainer.max_epochs=4",
    "data.batch_size=300",
    "privacy.accountant=rdp",
    "trainer.accelerator=cpu",
    "mechanism.k=20",
)
STEPS_AN_EPOCH, STEPS = 5, 20


def composed(directory, *overrides):
    return configs.composed([*SHORT, *overrides], directory)


def stop_after(steps, monkeypatch, error=KeyboardInterrupt):
    """As if the user, or something else, stopped the job after that many steps."""
    ordinary = JobProgress.on_train_batch_end

    def stop(self, trainer, *arguments):
        ordinary(self, trainer, *arguments)
        if trainer.global_step == steps:
            raise error("stopped here")

    monkeypatch.setattr(JobProgress, "on_train_batch_end", stop)


def ledger_count(directory):
    (path,) = (directory / "privacy").glob("*.ledger")
    return ledger.read(path).count


def test_a_finished_job_is_not_run_again(tmp_path):
    first = train(composed(tmp_path), ["seed=0"])
    assert (first.status, first.attempts, first.step, first.planned_steps) == ("finished", 1, STEPS, STEPS)
    assert first.job == "seed=0"
    assert set(first.metrics) >= {"val/accuracy", "test/accuracy", "privacy/epsilon", "performance/peak_memory_mb"}
    written = (tmp_path / "run.json").read_text()
    assert train(composed(tmp_path), ["seed=0"]) == first
    assert (tmp_path / "run.json").read_text() == written
    assert ledger_count(tmp_path) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "error"), [(3, RuntimeError), (12, RuntimeError), (12, KeyboardInterrupt)])
def test_a_job_that_was_cut_off_continues_with_its_ledger(steps, error, tmp_path, monkeypatch):
    """Also before its first regular checkpoint: lost steps are counted, and shorten the run. Ctrl-C loses none."""
    with monkeypatch.context() as context:
        stop_after(steps, context, error)
        with pytest.raises((SystemExit, RuntimeError)):
            train(composed(tmp_path))
    cut = RunRecord.read(tmp_path)
    interrupted = error is KeyboardInterrupt
    assert (cut.status, cut.attempts, cut.step) == ("interrupted" if interrupted else "failed", 1, steps)
    assert interrupted or cut.error == "RuntimeError: stopped here"
    assert not is_locked(tmp_path)
    assert ledger_count(tmp_path) == steps
    record = train(composed(tmp_path))
    kept = steps if interrupted else steps - steps % STEPS_AN_EPOCH
    assert (record.status, record.error, record.attempts) == ("finished", None, 2)
    assert record.step == STEPS - (steps - kept)
    assert record.privacy["steps"] == STEPS == ledger_count(tmp_path)
    assert record.privacy["epsilon"] <= 8.0
    assert record.started == cut.started
    assert record.seconds > cut.seconds > 0
    logged = [row["step"] for row in read_metrics(tmp_path)]
    assert logged == sorted(logged)
    assert (tmp_path / "metrics" / "metrics-1.csv").exists() == (steps > STEPS_AN_EPOCH)


def test_other_settings_in_the_same_directory_are_refused_and_lose_nothing(tmp_path):
    short = "trainer.max_steps=1"
    train(composed(tmp_path, short))
    with pytest.raises(ConfigurationError, match=r"holds a run with other settings \(privacy.epsilon: 8.0 → 2.0\)"):
        train(composed(tmp_path, short, "privacy.epsilon=2.0"))
    assert RunRecord.read(tmp_path).status == "failed", "a sweep that lists its jobs must not take it for finished"
    assert RunRecord.read(tmp_path).config["privacy"]["epsilon"] == 8.0
    again = train(composed(tmp_path, short, "logger=none", "threads=2"))
    assert (again.status, again.privacy["steps"]) == ("finished", 1)


def test_where_copies_of_the_data_are_kept_may_change():
    before = {"data": {"directory": "data", "cache_directory": "data/cache", "download": True}}
    now = {"data": {"directory": "other", "cache_directory": "elsewhere", "download": False}}
    assert changed_settings(before, now) == ["data.directory: data → other"]


def test_two_processes_do_not_train_in_one_directory(tmp_path):
    with locked(tmp_path), pytest.raises(ConfigurationError, match="Another process is training"):
        train(composed(tmp_path))
    assert RunRecord.read(tmp_path) is None


def test_a_setting_that_cannot_work_is_in_the_record(tmp_path):
    with pytest.raises(ConfigurationError):
        train(composed(tmp_path, "mechanism.k=99999"))
    record = RunRecord.read(tmp_path)
    assert record.status == "failed"
    assert record.error.endswith("(config key: mechanism.k)")


def test_what_is_not_private_is_in_the_table_that_was_asked_for_and_not_in_the_record(tmp_path):
    record = train(composed(tmp_path, "privacy.log_nonprivate=true", "trainer.max_epochs=1"))
    assert any("nonprivate/train/loss" in row for row in read_metrics(tmp_path))
    assert not [name for name in record.metrics if "nonprivate" in name or "train/loss" in name]


def plain(directory, *overrides):
    words = [word for word in SHORT if not word.startswith("mechanism.")]
    return configs.composed([*words, "mechanism=none", "optimizer.lr=0.2", *overrides], directory)


@pytest.mark.slow
def test_a_job_without_privacy_is_plain_training_and_says_so(tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        stop_after(12, context)
        with pytest.raises(SystemExit):
            train(plain(tmp_path))
    record = train(plain(tmp_path), ["mechanism=none"])
    assert (record.status, record.attempts, record.step, record.planned_steps) == ("finished", 2, STEPS, STEPS)
    assert record.privacy == {"private": False, "epsilon": math.inf, "steps": STEPS, "sample_rate": 1 / STEPS_AN_EPOCH}
    assert record.metrics["test/accuracy"] > 0.15
    assert not list(tmp_path.rglob("*.ledger"))
    assert not list(tmp_path.rglob("privacy_card*")), "there is nothing that a card could promise"
    rows = summary_rows(record, tmp_path)
    assert (rows["ε spent / target"], rows["Privacy"]) == ("∞", "Not private: 1 run without noise (ε = ∞).")
    assert not {"δ", "Privacy card"} & rows.keys()
    assert train(plain(tmp_path)) == RunRecord.read(tmp_path)


def test_the_environment_of_a_job_does_not_reach_the_next(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    for name in ("LOCAL_RANK", "MASTER_PORT"):  # which runs of several processes leave behind
        monkeypatch.delenv(name, raising=False)
    with clean_environment():
        os.environ.update(LOCAL_RANK="0", MASTER_PORT="1234", KEPT="2")
    assert "LOCAL_RANK" not in os.environ
    assert "MASTER_PORT" not in os.environ
    assert os.environ["KEPT"] == "1"


def test_a_lost_checkpoint_is_not_a_reason_to_release_once_more(tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        stop_after(7, context)
        with pytest.raises(SystemExit):
            train(composed(tmp_path))
    (tmp_path / "checkpoints" / "last.ckpt").unlink()
    with pytest.raises(
        ConfigurationError, match=r"holds a run that made 7 steps, but no checkpoint .*last.ckpt is missing"
    ):
        train(composed(tmp_path))
    assert ledger_count(tmp_path) == 7
