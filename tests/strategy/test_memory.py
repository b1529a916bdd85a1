"""Nothing of size m × p or n × p is held: peak memory does not grow with the number of anchors or records."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_five_times_the_anchors_and_records_take_no_more_memory():
    jobs = [f"stream,{source},{count},{count}" for source in ("tracked", "power") for count in (100, 500)]
    jobs += ["hold,power,100,100", "hold,power,200,100", "hold,power,100,200"]
    # The allocator may keep what was freed for later, as much as it sees fit; here it returns large blocks at once.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "tests.memory_probe", *jobs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    tracked, more_tracked, power, more_power, held, more_anchors, more_records = map(float, done.stdout.split())
    assert min(tracked, power) > 10, "one microbatch of gradients alone has 13 MB"
    assert more_tracked < 1.1 * tracked
    assert more_power < 1.1 * power
    assert min(more_anchors, more_records) > 1.1 * held, "holding everything fails the same check"
