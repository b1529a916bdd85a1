"""Nothing of size m × p or n × p is held: peak memory does not grow with the number of anchors or records.

As a script, this prints the peak memory of a step above the baseline, in MB: tracked,ANCHORS power,ANCHORS …
"""

import os
import subprocess
import sys

import pytest
import torch

from lightning_gep.algorithm.gep import gradient_embedding_perturbation
from lightning_gep.algorithm.noise import SystemNoise
from lightning_gep.algorithm.subspace import PowerSubspace
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.privacy.release import GEP
from lightning_gep.strategy.callbacks import peak_memory

CPU = torch.device("cpu")
SIZES, QUOTAS = (232, 7_056, 25_824, 102_848, 325), (2, 8, 16, 32, 2)  # half of ResNet20, in its groups; k = 60
MICROBATCH = 25


@pytest.mark.slow
def test_five_times_the_anchors_and_records_take_no_more_memory():
    jobs = [f"{source},{count}" for source in ("tracked", "power") for count in (100, 500)]
    # The allocator may keep what was freed for later, as much as it sees fit; here it returns large blocks at once.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", __name__, *jobs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    tracked, more_tracked, power, more_power = map(float, done.stdout.split())
    assert min(tracked, power) > 10, "one microbatch of gradients alone has 13 MB"
    assert more_tracked < 1.1 * tracked
    assert more_power < 1.1 * power


def measure(source, count):
    pool = torch.randn(sum(SIZES) + 331 * MICROBATCH)

    def gradients():
        """Microbatches of full-rank rows, cheaply: windows of one random vector."""
        for start in range(0, count, MICROBATCH):
            yield pool.roll(start).unfold(0, sum(SIZES), 331)[:MICROBATCH].clone()

    tracked = source == "tracked"
    next(gradients())
    baseline = peak_memory(CPU)
    gradient_embedding_perturbation(
        gradients,
        gradients(),
        subspace=TrackedSubspace(SIZES, QUOTAS, num_anchors=count) if tracked else PowerSubspace(SIZES, QUOTAS),
        release=GEP(1.0, 1.0, split="equal").release(1.0),
        noise=SystemNoise(),
        expected_batch_size=count,
        step=0,
        charge=lambda: None,
    )
    print(peak_memory(CPU) - baseline, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for job in sys.argv[1:]:
        source, count = job.split(",")
        # A child each: its peak begins at what is held now, whatever was held before.
        if (child := os.fork()) == 0:
            measure(source, int(count))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
