"""A run on one of several nodes, as torchrun starts it; the process in `die` kills itself once, in its third step."""

import os
import signal
import sys
from pathlib import Path

import torch

from tests.resumable import every_step, run
from tests.toys import strategy


class Dies(torch.optim.SGD):
    """Not when it is started again: then there is a file."""

    def step(self, closure=None):
        result = super().step(closure)
        dying = os.environ.get("DIES") == os.environ.get("RANK") and (directory / "step=3.ckpt").exists()
        if dying and not (directory / "died").exists():
            (directory / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    directory, last = Path(sys.argv[1]), Path(sys.argv[1]) / "last.ckpt"
    torch.optim.SGD = Dies
    used = strategy(generator="system", timeout=120, refresh_every=2)
    trained, fit = run(
        directory,
        used,
        batch_size=6,
        checkpoint=last if last.exists() else None,
        callbacks=[every_step(directory, save_last=True)],
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=2,
    )
    seen = {"weights": torch.cat([p.detach().flatten() for p in trained.parameters()]), "steps": used.privacy.steps}
    torch.save(seen, directory / f"rank{fit.global_rank}.pt")
