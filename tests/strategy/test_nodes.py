"""Two nodes, started by torchrun: in network namespaces of their own where the system allows it, or on one host."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.resumable import STEPS, run
from tests.toys import Classifier, loader, strategy, trainer

ROOT = Path(__file__).parents[2]
SECONDS = 400


def ip(*command):
    return subprocess.run(["ip", *command], capture_output=True, text=True)


@contextmanager
def nodes():
    """What to put before the command of each node, and its address."""
    name = f"gep{os.getpid()}"
    try:
        if all(ip("netns", "add", f"{name}-{node}").returncode == 0 for node in (0, 1)):
            link = ("link", "add", "node", "netns", f"{name}-0", "type", "veth", "peer", "name", "node")
            assert ip(*link, "netns", f"{name}-1").returncode == 0
            for node in (0, 1):
                inside = ("-n", f"{name}-{node}")
                ip(*inside, "addr", "add", f"10.99.0.{node + 1}/24", "dev", "node")
                for device in ("lo", "node"):
                    ip(*inside, "link", "set", device, "up")
            yield [(["ip", "netns", "exec", f"{name}-{node}"], f"10.99.0.{node + 1}", "node") for node in (0, 1)]
        else:
            yield [([], "127.0.0.1", "lo")] * 2
    finally:
        for node in (0, 1):
            ip("netns", "del", f"{name}-{node}")


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def start(directory, *, processes, restarts=0, dies=None):
    """The output of both agents; each node has so many processes."""
    port, agents = free_port(), []
    with nodes() as places:
        for node, (prefix, _, interface) in enumerate(places):
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={processes}"]
            command += [f"--node-rank={node}", f"--master-addr={places[0][1]}", f"--master-port={port}"]
            command += [f"--max-restarts={restarts}", "tests/node_run.py", str(directory)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": interface}
            environment |= {"OMP_NUM_THREADS": "1"} | ({} if dies is None else {"DIES": str(dies)})
            log = (directory / f"node{node}.log").open("w")
            agents.append(
                subprocess.Popen([*prefix, *command], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
        try:
            codes = [agent.wait(SECONDS) for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
    return codes, [(directory / f"node{node}.log").read_text() for node in (0, 1)]


@pytest.mark.slow
@pytest.mark.distributed
def test_torchrun_starts_a_run_of_two_nodes_again_and_it_goes_on_with_its_epsilon(tmp_path):
    codes, logs = start(tmp_path, processes=1, restarts=5, dies=1)
    assert codes == [0, 0], logs[0][-3000:] + logs[1][-3000:]
    assert (tmp_path / "died").exists()
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    assert torch.equal(first["weights"], second["weights"])
    assert first["steps"] == second["steps"] >= STEPS
    # At another world size, with the same expected batch: nothing is forgotten.
    used = strategy(generator="system", refresh_every=2)
    _, fit = run(tmp_path, used, steps=STEPS + 2, checkpoint=tmp_path / "last.ckpt")
    assert fit.world_size == 1
    assert used.privacy.steps == first["steps"] + 2


@pytest.mark.slow
@pytest.mark.distributed
def test_a_process_that_dies_ends_the_run_on_all_nodes_with_words(tmp_path):
    begin = time.monotonic()
    codes, logs = start(tmp_path, processes=2, dies=3)
    assert all(code != 0 for code in codes)
    assert time.monotonic() - begin < SECONDS
    assert "ProcessLostError: Process" in logs[0]
    assert "resume from the last checkpoint" in logs[0]
    assert not (tmp_path / "rank0.pt").exists()


class Sleeps(Classifier):
    def on_train_batch_start(self, batch, batch_idx):
        if self.trainer.global_rank == 1 and self.global_step == 2:
            time.sleep(1000)


@pytest.mark.distributed
def test_a_process_that_does_not_answer_ends_the_run_after_the_timeout(tmp_path):
    used = strategy(mechanism="gp", start_method="fork", timeout=5)
    fit = trainer(tmp_path, used, max_steps=4, devices=2)
    with pytest.raises(Exception, match=r"Process 0 has lost contact .* \(GEPStrategy\(timeout=...\)\)"):
        fit.fit(Sleeps(), loader(batch_size=6))
