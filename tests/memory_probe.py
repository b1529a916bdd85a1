"""Peak memory of one step above the baseline, in MB; run in its own process by strategy/test_memory.py.

python -m tests.memory_probe stream,tracked,ANCHORS,RECORDS hold,power,ANCHORS,RECORDS ...
"""

import os
import re
import resource
import sys
from pathlib import Path

import torch

from lightning_gep.algorithm.gep import gradient_embedding_perturbation
from lightning_gep.algorithm.noise import SystemNoise
from lightning_gep.algorithm.subspace import PowerSubspace
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.privacy.release import GEP

SIZES, QUOTAS = (232, 7_056, 25_824, 102_848, 325), (2, 8, 16, 32, 2)  # half of ResNet20, in its groups; k = 60
MICROBATCH = 25
torch.set_num_threads(1)
POOL = torch.randn(sum(SIZES) + 331 * MICROBATCH)


def gradients(count):
    """Microbatches of full-rank rows, cheaply: windows of one random vector."""
    for start in range(0, count, MICROBATCH):
        yield POOL.roll(start).unfold(0, sum(SIZES), 331)[: min(MICROBATCH, count - start)].clone()


def stream(anchors, records, subspace):
    gradient_embedding_perturbation(
        lambda: gradients(anchors),
        gradients(records),
        subspace=subspace,
        release=GEP(1.0, 1.0, split="equal").release(1.0),
        noise=SystemNoise(),
        expected_batch_size=records,
        step=0,
        charge=lambda: None,
    )


def hold(anchors, records, subspace):
    """As published: all gradients at once, residuals formed."""
    anchor_gradients, private = torch.cat(list(gradients(anchors))), torch.cat(list(gradients(records)))
    basis = subspace.at_step(0, lambda: anchor_gradients.split(MICROBATCH))
    start = 0
    for block in basis.blocks:
        part = private[:, start : start + block.shape[1]]
        residual = part - (part @ block.T) @ block
        start += block.shape[1]
        residual.sum(0)


def peak():
    """Largest resident size so far, in MB."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss, which begins at the size of the process that started this one.
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


def measure(how, source, anchors, records):
    tracked, power = TrackedSubspace(SIZES, QUOTAS, num_anchors=anchors), PowerSubspace(SIZES, QUOTAS)
    next(gradients(MICROBATCH))
    baseline = peak()
    {"stream": stream, "hold": hold}[how](anchors, records, tracked if source == "tracked" else power)
    print(peak() - baseline, flush=True)


if __name__ == "__main__":
    for job in sys.argv[1:]:
        how, source, anchors, records = job.split(",")
        # A child each: its peak begins at what is held now, whatever was held before.
        if (child := os.fork()) == 0:
            measure(how, source, int(anchors), int(records))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
