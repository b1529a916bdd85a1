"""Lightning's SLURMEnvironment, with the variables that srun sets and a stand-in for scontrol."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.resumable import STEPS, run
from tests.slurm_run import ASKED_AT, ENDED_AT
from tests.strategy.test_nodes import SECONDS, free_port
from tests.toys import Classifier, loader, strategy, trainer, weights

ROOT = Path(__file__).parents[2]
JOB = "4711"


def of_srun(process, processes, life=0):
    """The variables of one process on the only node."""
    of_job = {"JOB_ID": JOB, "JOB_NAME": "train", "NODELIST": "127.0.0.1", "NNODES": 1, "RESTART_COUNT": life}
    of_task = {"NTASKS": processes, "NTASKS_PER_NODE": processes, "PROCID": process, "LOCALID": process, "NODEID": 0}
    return {f"SLURM_{name}": str(value) for name, value in {**of_job, **of_task}.items()}


def scontrol(directory):
    """A search path with a command that notes how it was called, and the note."""
    command, notes = directory / "bin" / "scontrol", directory / "requeued"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$@" >> "{notes}"\n')
    command.chmod(0o755)
    return f"{command.parent}{os.pathsep}{os.environ['PATH']}", notes


def srun(directory, path, life):
    """The exit codes and the output of two processes."""
    logs, started, port = [directory / f"life{life}-{process}.log" for process in (0, 1)], [], str(free_port())
    for process, log in enumerate(logs):
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment |= {"MASTER_PORT": port, **of_srun(process, 2, life)}
        command = [sys.executable, "-m", "tests.slurm_run", str(directory)]
        started.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log.open("w"), stderr=subprocess.STDOUT)
        )
    try:
        return [process.wait(SECONDS) for process in started], "".join(log.read_text()[-3000:] for log in logs)
    finally:
        for process in started:
            process.kill()


@pytest.mark.slow
@pytest.mark.distributed
def test_a_requeued_job_goes_on_with_its_epsilon_to_the_weights_of_one_process(tmp_path):
    path, notes = scontrol(tmp_path)
    codes, log = srun(tmp_path, path, life=0)
    assert codes == [-signal.SIGKILL, -signal.SIGKILL], log
    assert notes.read_text() == f"requeue {JOB}\n", "once, by the first process, whichever got the signal"
    saved = torch.load(tmp_path / "hpc_ckpt_1.ckpt", weights_only=True)
    assert saved["global_step"] == saved["lightning_gep"]["account"]["steps"] == ASKED_AT
    codes, log = srun(tmp_path, path, life=1)
    assert codes == [0, 0], log
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    assert torch.equal(first["weights"], second["weights"])
    assert first["steps"] == second["steps"] == STEPS + ENDED_AT - ASKED_AT, "what was lost counts"
    alone, _ = run(tmp_path / "alone", strategy(refresh_every=2))
    torch.testing.assert_close(first["weights"], weights(alone), rtol=0, atol=5e-6)


PRIVATE = loader().dataset.tensors[0]


def is_private(record):
    return bool((record == PRIVATE).all(1).any())


SENT = []


class Keeps(Classifier):
    """Has what training_step saw last in its checkpoints; the signal arrives while it sees a private record."""

    def training_step(self, batch, batch_idx):
        self.last = batch[0][0].clone()
        if self.trainer.global_step == 2 and is_private(self.last) and not SENT:
            SENT.append(os.kill(os.getpid(), signal.SIGUSR1))
        return super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["last"] = self.last


def test_a_checkpoint_on_slurms_signal_holds_nothing_of_the_step_it_came_in(tmp_path, monkeypatch):
    path, notes = scontrol(tmp_path)
    for name, value in {"PATH": path, **of_srun(0, 1)}.items():
        monkeypatch.setenv(name, value)
    used = strategy(mechanism="gp", gradients="loop")
    before = signal.getsignal(signal.SIGUSR1)
    trainer(tmp_path, used, max_steps=4).fit(Keeps(), loader())
    assert SENT
    assert notes.read_text() == f"requeue {JOB}\n"
    saved = torch.load(tmp_path / "hpc_ckpt_1.ckpt", weights_only=True)
    assert not is_private(saved["last"])
    assert saved["global_step"] == saved["lightning_gep"]["account"]["steps"] == 3
    assert signal.getsignal(signal.SIGUSR1) == before
