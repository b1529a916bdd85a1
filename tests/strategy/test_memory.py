"""Nothing of size m × p or n × p is held: peak memory does not grow with the number of anchors or records."""

import os
import subprocess
import sys

import pytest


def growth(how, source, anchors, records):
    command = [sys.executable, "-m", "tests.memory_probe", how, source, str(anchors), str(records)]
    # The allocator may keep what was freed for later, as much as it sees fit; here it gives large pieces back at once.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("source", ["tracked", "power"])
def test_sixteen_times_the_anchors_and_records_take_no_more_memory(source):
    small = growth("stream", source, 125, 125)
    assert small > 20, "one microbatch of gradients alone has 27 MB"
    assert growth("stream", source, 2000, 2000) < 1.1 * small


def test_holding_everything_fails_the_same_check():
    assert growth("hold", "power", 500, 125) > 1.1 * growth("hold", "power", 125, 125)
    assert growth("hold", "power", 125, 500) > 1.1 * growth("hold", "power", 125, 125)
