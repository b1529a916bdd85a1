"""With one record more or less, a real step moves its sums by at most their thresholds, and nothing else."""

import os
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_gep.algorithm import gep
from lightning_gep.audit.replay import KINDS, REMOVED, SAME, run_replay
from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy.step import StepGradients
from tests.gradients_zoo import ZOO
from tests.replays import BACKENDS, MECHANISMS, PRECISIONS, replayed
from tests.toys import Classifier, records

COMBINATIONS = [
    (mechanism, backend, PRECISIONS[(i + j) % len(PRECISIONS)])
    for i, mechanism in enumerate(MECHANISMS)
    for j, backend in enumerate(BACKENDS)
    if backend != "ghost" or mechanism in ("gp", "spectral")
]
ZOO_COMBINATIONS = list(zip(ZOO, cycle(MECHANISMS), cycle(PRECISIONS), strict=False))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_moves_only_its_sums(mechanism):
    report = replayed("Linear", mechanism, "functional", "32-true", replays=20, steps=1)
    assert report.held, report
    assert report.largest > 0.99, "or the replays would see nothing"


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "backend", "precision"), COMBINATIONS)
def test_only_the_sums_move_and_by_no_more_than_declared(mechanism, backend, precision):
    report = replayed("Dropout", mechanism, backend, precision, replays=24, steps=2)
    assert report.held, report
    assert report.replays == 24 + 2
    assert report.refused == 0
    assert {*KINDS, REMOVED, SAME} == set(report.ratios), "every kind of record was tried"
    assert report.largest > 0.99, "or the replays would see nothing"
    assert report.ratios[SAME] == report.ratios["NaN"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mechanism", "precision"), ZOO_COMBINATIONS)
def test_the_module_zoo_replays(name, mechanism, precision):
    report = replayed(name, mechanism, "auto", precision, replays=12, steps=1)
    assert report.held, report
    assert report.largest > 0


def without_clipping(embedding_norms, residual_norms, release):
    return torch.ones_like(embedding_norms), torch.ones_like(residual_norms)


def spoiled(original, spoil):
    def call(*args, **kwargs):
        return spoil(original(*args, **kwargs), *args)

    return call


class ScaledByTheBatch(gep.Sums):
    def residual(self, basis):
        return super().residual(basis) * int(self.diagnostics.records)


def times_nan(factors, rows, finite):
    return factors @ rows.double()


BREAKS = {
    "NaN in the sums": ("largest", lambda patch: patch.setattr(gep, "weighted_sum", times_nan)),
    "no clipping": ("largest", lambda patch: patch.setattr(gep, "clip_factors", without_clipping)),
    "sums scaled by the size of the batch": ("largest", lambda patch: patch.setattr(gep, "Sums", ScaledByTheBatch)),
    "raw gradients in p.grad": ("p.grad", lambda patch: patch.setattr(StepGradients, "put", leak_into_put())),
    "mixed records": ("gradients of other records", lambda patch: patch.setattr(StepGradients, "of_private", mixing())),
    "noise of another size": ("noise", lambda patch: patch.setattr(gep, "perturb", noise_by_the_sum())),
    "a record is kept": ("attributes", lambda patch: patch.setattr(StepGradients, "keep", keeping())),
}


def leak_into_put(put=StepGradients.put):
    def leaking(self, gradient):
        put(self, gradient + self.raw)

    return leaking


def mixing(of_private=StepGradients.of_private):
    def mixed(self, batch):
        for rows in of_private(self, batch):
            yield rows + 0.01 * rows.mean(0)

    return mixed


def noise_by_the_sum(perturb=gep.perturb):
    def perturbed(total, part, noise, step, name):
        if part is not None and float(total.norm()) > 1:
            noise.normal(1, step=step, part=name, device=total.device)
        return perturb(total, part, noise, step, name)

    return perturbed


def keeping():
    def kept(self):
        self.module.last_norm = self.raw.norm()

    return kept


@pytest.mark.parametrize("name", BREAKS)
def test_a_replay_sees(name, monkeypatch):
    """The list of what moves is put to the test: each break moves what it should."""
    what, plant = BREAKS[name]
    plant(monkeypatch)
    if what in ("p.grad", "attributes"):
        seen = StepGradients.of_private

        def of_private(self, batch):
            self.raw = torch.zeros(())
            for rows in seen(self, batch):
                self.raw = self.raw + rows.nan_to_num(0.0, 0.0, 0.0).sum(0)
                yield rows

        monkeypatch.setattr(StepGradients, "of_private", of_private)
    report = replayed("Linear", "gep, separate", "functional", "32-true", replays=10, steps=1)
    assert not report.held
    assert report.largest > 1 if what == "largest" else what in report.moved, report


def test_a_batch_may_be_empty_and_a_record_may_end_the_training():
    class Picky(Classifier):
        def training_step(self, batch, batch_idx):
            if batch[0].isnan().any():
                raise ValueError("a value of a record")
            return super().training_step(batch, batch_idx)

    public = DataLoader(records(40), batch_size=1)
    settings = {"mechanism": "gp", "gradients": "loop", "delta": 1e-3, "accountant": "rdp"}
    report = run_replay(Picky(), public, replays=60, steps=6, seed=3, **settings)
    assert report.held, report
    assert report.refused > 0
    assert report.replays + report.refused == 66


def test_too_few_records_are_refused():
    with pytest.raises(ConfigurationError, match="8 public records or more, not 3"):
        run_replay(Classifier(), DataLoader(records(3)), mechanism="gp")


IN_TWO_PROCESSES = """
import sys
import torch
from tests.replays import replayed

torch.set_num_threads(1)
if __name__ == "__main__":
    for mechanism in ("gep, joint", "spectral"):
        report = replayed("Linear", mechanism, "functional", "32-true", replays=24, steps=2, trainer={"devices": 2})
        assert report.held, report
        assert report.largest > 0.99 and report.replays == 26 and "other process" in report.ratios, report
"""


@pytest.mark.distributed
def test_two_processes(tmp_path):
    """The record joins the batch of one of them; the sums are those of both."""
    (tmp_path / "run.py").write_text(IN_TWO_PROCESSES)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, tmp_path / "run.py"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
