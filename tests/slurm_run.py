"""A run as srun starts it. In its first life the second process asks for a requeue, and Slurm ends both later."""

import os
import signal
import sys
from pathlib import Path

import torch

from tests.resumable import run
from tests.toys import strategy

ASKED_AT, ENDED_AT = 3, 5


class Ends(torch.optim.SGD):
    """The job ends after a step, without a word; its last steps are in no checkpoint."""

    def step(self, closure=None):
        result = super().step(closure)
        steps[0] += 1
        if first_life and steps[0] == ASKED_AT and os.environ["SLURM_PROCID"] == "1":
            os.kill(os.getpid(), signal.SIGUSR1)
        if first_life and steps[0] == ENDED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    directory, steps = Path(sys.argv[1]), [0]
    first_life = os.environ["SLURM_RESTART_COUNT"] == "0"
    torch.optim.SGD = Ends
    used = strategy(refresh_every=2)
    trained, fit = run(directory, used, batch_size=6, devices=int(os.environ["SLURM_NTASKS_PER_NODE"]))
    seen = {"weights": torch.cat([p.detach().flatten() for p in trained.parameters()]), "steps": used.privacy.steps}
    torch.save(seen, directory / f"rank{fit.global_rank}.pt")
