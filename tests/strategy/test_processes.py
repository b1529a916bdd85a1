import copy
import os
import subprocess
import sys

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_gep.arguments import quoted
from lightning_gep.errors import ConfigurationError
from lightning_gep.reporting.records import read_metrics
from lightning_gep.strategy.callbacks import PerformanceMonitor
from lightning_gep.strategy.processes import child_command, config_flags
from tests.toys import CLASSES, FEATURES, Classifier, loader, strategy, trainer

APP = """
import os, sys
import hydra
from hydra.core.hydra_config import HydraConfig
from lightning_gep.strategy.processes import child_command

@hydra.main(version_base="1.3", config_path=None)
def main(config):
    print("RAN", config.get("a"), HydraConfig.get().runtime.output_dir, flush=True)
    if "CHILD" not in os.environ:
        import subprocess
        command, directory = child_command()
        subprocess.run(command, cwd=directory, env={**os.environ, "CHILD": "1"}, check=True)

main()
"""


def ran(tmp_path, *arguments):
    (tmp_path / "app.py").write_text(APP)
    done = subprocess.run([sys.executable, "app.py", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.split(maxsplit=2)[1:] for line in done.stdout.splitlines() if line.startswith("RAN")]


@pytest.mark.slow
def test_a_child_of_a_sweeps_job_runs_that_job_in_its_directory_and_nothing_else(tmp_path):
    lines = ran(tmp_path, "-m", "+a=1,2", r"hydra.sweep.dir='it\'s here, or there'")
    assert [a for a, _ in lines] == ["1", "1", "2", "2"]
    assert [directory for _, directory in lines[::2]] == [directory for _, directory in lines[1::2]]
    assert len({directory for _, directory in lines}) == 2


@pytest.mark.distributed
def test_what_processes_of_a_notebook_have_spent_and_logged_comes_back_with_the_weights(tmp_path):
    used, trained = strategy(start_method="fork"), Classifier()
    monitor, logger = PerformanceMonitor(), CSVLogger(tmp_path, name="metrics", version="")
    fit = trainer(tmp_path, used, devices=2, max_epochs=1, callbacks=[monitor], logger=logger, log_every_n_steps=1)
    fit.fit(trained, loader(batch_size=10))
    assert used.privacy.steps == 3
    fit.save_checkpoint(tmp_path / "by_hand.ckpt")
    assert torch.load(tmp_path / "by_hand.ckpt", weights_only=True)["lightning_gep"]["account"]["steps"] == 3
    for module in (trained, copy.deepcopy(trained)):
        with pytest.raises(ConfigurationError, match="come from a private run that had made 3 steps"):
            trainer(tmp_path / "elsewhere", strategy()).fit(module, loader())
    (row,) = (row for row in read_metrics(tmp_path) if "performance/steps_per_second" in row)
    steps, processed = (row[f"performance/{name}_per_second"] for name in ("steps", "records"))
    assert processed == pytest.approx(20 * steps, rel=1e-5), "the records of both processes"


class Wide(Classifier):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(FEATURES, 3000), nn.Linear(3000, CLASSES)


@pytest.mark.distributed
def test_a_basis_larger_than_a_pipe_comes_back_from_processes_of_a_notebook(tmp_path):
    used = strategy(start_method="fork")
    fit = trainer(tmp_path, used, devices=2, max_steps=1)
    fit.fit(Wide(), loader(batch_size=10))
    fit.save_checkpoint(tmp_path / "by_hand.ckpt")
    basis = torch.load(tmp_path / "by_hand.ckpt", weights_only=True)["lightning_gep"]["subspace"]["blocks"]
    assert sum(block.numel() * 4 for block in basis) > 2**17


def test_outside_hydra_a_child_is_started_like_its_parent(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "3"])
    command, directory = child_command()
    assert command[0] == sys.executable
    assert command[-2:] == ["--lr", "3"]
    assert directory is None
    assert child_command(["-m", "some.module"])[0] == [sys.executable, "-m", "some.module", "--lr", "3"]
    flags = ["-m", "--config-dir", "a", "x=1,2", "--config-name=b", "-cp", "c", "--multirun"]
    assert config_flags(flags) == ["--config-dir", "a", "--config-name=b", "-cp", "c"]


@pytest.mark.parametrize("text", ["a", "it's", "a b", "back\\slash", "end\\", "\\'both", "a,b=c", "ε={x}"])
def test_quoted_values_come_through_hydras_command_line(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (override,) = OverridesParser.create().parse_overrides([f"key={quoted(text)}"])
    assert override.value() == text
    assert os.linesep not in quoted(text)
