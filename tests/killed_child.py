"""A run in a process of its own that is killed: at a given moment of a given step, or by somebody else.

It raises a counter in a shared file at each draw of noise, whatever becomes of the process after that.
"""

import mmap
import os
import signal
import struct
from pathlib import Path

import torch

from lightning_gep.algorithm import noise
from lightning_gep.privacy import ledger
from tests.resumable import every_step, run
from tests.toys import strategy


def train(directory, kill_at, moment, checkpoint):
    """400 steps, or as many as there is time for."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    with (directory / "witness").open("r+b") as file:
        witness = mmap.mmap(file.fileno(), 8)
    releases = 0

    def die(at):
        if moment == at and releases == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    class Witness(noise.SystemNoise):
        def normal(self, size, *, step, part, device):
            die("before noise")
            if part == "embedding":
                struct.pack_into("q", witness, 0, struct.unpack_from("q", witness, 0)[0] + 1)
            drawn = super().normal(size, step=step, part=part, device=device)
            die("after noise")
            return drawn

    record, step = ledger.Ledger.record, torch.optim.SGD.step

    def recorded(self, *args):
        nonlocal releases
        releases += 1
        die("before ledger")
        record(self, *args)
        die("after ledger")

    def stepped(self, closure=None):
        result = step(self, closure)
        die("after update")
        return result

    noise.SystemNoise, ledger.Ledger.record, torch.optim.SGD.step = Witness, recorded, stepped
    kept = [every_step(Path(directory) / "all", save_last=True)]
    run(directory, strategy(generator="system"), steps=400, checkpoint=checkpoint, callbacks=kept)
