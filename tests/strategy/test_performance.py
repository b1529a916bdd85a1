import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_gep.reporting.records import read_metrics
from lightning_gep.strategy import callbacks
from lightning_gep.strategy.callbacks import PerformanceMonitor, forget_peak_memory, peak_memory
from tests.toys import Classifier, fresh_memory, loader, strategy, trainer

CPU = torch.device("cpu")
NAMES = {f"performance/{name}" for name in ("steps_per_second", "records_per_second", "peak_memory_mb")}


def fitted(directory, module=None, using=None, batch_size=12, **settings):
    fit = trainer(
        directory,
        using or strategy(),
        callbacks=[PerformanceMonitor(), *settings.pop("callbacks", [])],
        logger=CSVLogger(directory, name="metrics", version=""),
        log_every_n_steps=1,
        **settings,
    )
    fit.fit(module or Classifier(), loader(batch_size), loader(shuffle=False))
    return fit


def performance_rows(directory):
    return [row for row in read_metrics(directory) if NAMES & row.keys()]


def test_every_epoch_logs_its_figures_once(tmp_path):
    fit = fitted(tmp_path, max_epochs=3)
    rows = performance_rows(tmp_path)
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert row.keys() >= NAMES
        # 12 records are expected; how many were drawn is private.
        assert row["performance/records_per_second"] == pytest.approx(
            12 * row["performance/steps_per_second"], rel=1e-5
        )
    assert fit.callback_metrics.keys() >= NAMES


def clock(monkeypatch, seconds):
    """A clock that goes on by as much as the test says."""
    now = [0.0]
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: now[0])

    def tick(*_):
        now[0] += seconds

    return now, tick


def test_validation_takes_no_time(tmp_path, monkeypatch):
    _, tick = clock(monkeypatch, 0.5)

    class Ticking(Classifier):
        def on_train_batch_end(self, *_):
            tick()

        def validation_step(self, *_):
            for _ in range(100):
                tick()

    fitted(tmp_path, Ticking(), max_epochs=2)
    assert [row["performance/steps_per_second"] for row in performance_rows(tmp_path)] == pytest.approx([2.0, 2.0])


def test_a_run_resumed_within_an_epoch_counts_its_own_steps_only(tmp_path, monkeypatch):
    _, tick = clock(monkeypatch, 0.5)

    class Ticking(Classifier):
        def on_train_batch_end(self, *_):
            tick()

    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    fitted(tmp_path / "first", Ticking(), max_epochs=2, callbacks=[keep], enable_checkpointing=True)
    fit = trainer(
        tmp_path / "first",
        strategy(),
        callbacks=[PerformanceMonitor()],
        logger=CSVLogger(tmp_path / "second", name="metrics", version=""),
        log_every_n_steps=1,
        max_epochs=3,
    )
    fit.fit(Ticking(), loader(), ckpt_path=tmp_path / "step=3.ckpt")
    rows = performance_rows(tmp_path / "second")
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert [row["performance/steps_per_second"] for row in rows] == pytest.approx([2.0, 2.0, 2.0])


def test_without_a_private_strategy_records_are_not_guessed(tmp_path):
    fitted(tmp_path, using="auto", max_epochs=1)
    (row,) = performance_rows(tmp_path)
    assert NAMES & row.keys() == NAMES - {"performance/records_per_second"}


def test_two_processes_log_the_first_ones_steps_and_the_records_of_both(tmp_path):
    fitted(tmp_path, using=strategy(start_method="fork"), devices=2, batch_size=6)
    rows = performance_rows(tmp_path)
    assert len(rows) == 2
    for row in rows:
        assert row["performance/records_per_second"] == pytest.approx(
            12 * row["performance/steps_per_second"], rel=1e-5
        )


def test_peak_memory_sees_what_was_held_and_is_forgotten_again():
    forget_peak_memory(CPU)
    before = peak_memory(CPU)
    held = fresh_memory(64)
    assert peak_memory(CPU) > before + 50
    del held
    forget_peak_memory(CPU)
    assert peak_memory(CPU) < before + 30


def test_peak_memory_without_proc_is_that_of_the_process(monkeypatch, tmp_path):
    here = peak_memory(CPU)
    monkeypatch.setattr(callbacks, "PROCESS", tmp_path / "nowhere")
    forget_peak_memory(CPU)
    assert 0.5 * here < peak_memory(CPU) < 100 * here, "megabytes, in both cases"
