"""Whenever a run is killed, the ledger has every release of which noise was drawn."""

import signal

import pytest

from tests.resumable import run
from tests.soak import Kills, in_ledger, kill_again_and_again, newest_checkpoint, start_child, steps_in, witnessed
from tests.toys import strategy


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before ledger", "after ledger", "before noise", "after noise", "after update"])
def test_a_kill_at_any_point_of_a_step_never_hides_a_release(tmp_path, moment):
    child = start_child(tmp_path, kill_at=3, moment=moment)
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
def test_kills_at_random_moments_never_hide_a_release_or_lose_a_checkpoint(tmp_path):
    """One run, killed over and over and resumed each time from its newest checkpoint."""
    counts = kill_again_and_again(tmp_path, kills=11)
    assert counts.in_training >= 7, "most kills have to land between the first and the last step"
    assert counts == Kills(injected=11, in_training=counts.in_training)
    newest = newest_checkpoint(tmp_path)
    used = strategy(generator="system")
    run(tmp_path, used, steps=steps_in(newest) + 1, checkpoint=newest)
    assert used.privacy.steps >= witnessed(tmp_path) + 1
