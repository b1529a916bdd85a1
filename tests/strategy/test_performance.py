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


class Ticking(Classifier):
    """Lives by a clock that goes on by half a second a training step, and by far more in validation."""

    now = 0.0

    def on_train_batch_end(self, *_):
        self.now += 0.5

    def validation_step(self, *_):
        self.now += 50


def performance_rows(directory, monkeypatch, using, checkpoint=None, **settings):
    module = Ticking()
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: module.now)
    used = [PerformanceMonitor(), *settings.pop("callbacks", [])]
    logger = CSVLogger(directory, name="metrics", version="")
    fit = trainer(directory, using, callbacks=used, logger=logger, log_every_n_steps=1, **settings)
    fit.fit(module, loader(), loader(shuffle=False), ckpt_path=checkpoint)
    return [row for row in read_metrics(directory) if NAMES & row.keys()]


def test_every_epoch_logs_its_own_training_steps_once_also_after_a_resume(tmp_path, monkeypatch):
    """12 records are expected in a step; how many were drawn is private. Validation takes no time."""
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    settings = {"max_epochs": 2, "callbacks": [keep], "enable_checkpointing": True}
    first = performance_rows(tmp_path / "first", monkeypatch, strategy(), **settings)
    second = performance_rows(tmp_path / "second", monkeypatch, strategy(), tmp_path / "step=3.ckpt", max_epochs=2)
    for rows in (first, second):
        assert [row["epoch"] for row in rows] == [0, 1]
        assert all(row.keys() >= NAMES for row in rows)
        assert [row["performance/steps_per_second"] for row in rows] == pytest.approx([2.0, 2.0])
        assert [row["performance/records_per_second"] for row in rows] == pytest.approx([24.0, 24.0])


def test_without_a_private_strategy_records_are_not_guessed(tmp_path, monkeypatch):
    (row,) = performance_rows(tmp_path, monkeypatch, "auto", max_epochs=1)
    assert NAMES & row.keys() == NAMES - {"performance/records_per_second"}


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
