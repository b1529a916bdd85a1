"""Whenever a run is killed, the ledger has every release of which noise was drawn."""

import multiprocessing
import os
import random
import signal
import time

import pytest
import torch

from lightning_gep.privacy.ledger import read
from tests import killed_child
from tests.resumable import run
from tests.toys import strategy

# The children are forked from a process that has imported everything and done nothing: a start costs no imports.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([killed_child.__name__])


def start(directory, kill_at=0, moment="never", checkpoint=None):
    if not (directory / "witness").exists():
        (directory / "witness").write_bytes(bytes(8))
    child = SERVER.Process(target=killed_child.train, args=(directory, kill_at, moment, checkpoint))
    child.start()
    return child


def witnessed(tmp_path):
    return int.from_bytes((tmp_path / "witness").read_bytes(), "little")


def in_ledger(tmp_path):
    (path,) = (tmp_path / "privacy").glob("*.ledger")
    return len(read(path).releases)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before ledger", "after ledger", "before noise", "after noise", "after update"])
def test_a_kill_at_any_point_of_a_step_never_hides_a_release(tmp_path, moment):
    child = start(tmp_path, kill_at=3, moment=moment)
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    draws = witnessed(tmp_path)
    assert draws == (2 if moment in ("before ledger", "after ledger", "before noise") else 3)
    assert in_ledger(tmp_path) >= draws
    checkpoint = tmp_path / "all" / "step=2.ckpt"
    used = strategy(generator="system")
    run(tmp_path, used, steps=4, checkpoint=checkpoint)
    assert used.privacy.steps >= draws + 2


@pytest.mark.slow
def test_kills_at_random_moments_never_hide_a_release(tmp_path):
    """One run, killed over and over and resumed each time from its newest checkpoint."""
    chance, during = random.Random(0), 0
    for attempt in range(11):
        before = witnessed(tmp_path) if attempt else 0
        newest = max((tmp_path / "all").glob("step=*.ckpt"), key=os.path.getmtime, default=None) if attempt else None
        child = start(tmp_path, checkpoint=newest)
        deadline = time.monotonic() + 60
        # Every fifth kill may come before the first step, but not before there is something to resume from.
        while time.monotonic() < deadline and (
            (attempt % 5 and witnessed(tmp_path) == before) or not any((tmp_path / "all").glob("step=*.ckpt"))
        ):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.15))
        child.kill()
        child.join()
        during += before < witnessed(tmp_path) < 400 * (attempt + 1)
        if (tmp_path / "privacy").exists():
            assert in_ledger(tmp_path) >= witnessed(tmp_path)
    assert during >= 7, "most kills have to land between the first and the last step"
    newest = max((tmp_path / "all").glob("step=*.ckpt"), key=os.path.getmtime)
    used = strategy(generator="system")
    run(tmp_path, used, steps=torch.load(newest, weights_only=True)["global_step"] + 1, checkpoint=newest)
    assert used.privacy.steps >= witnessed(tmp_path) + 1
