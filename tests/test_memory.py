"""Nothing of size m × p or n × p is held: peak memory does not grow with the number of anchors or records."""

import subprocess
import sys

import pytest


def growth(how, source, anchors, records):
    command = [sys.executable, "-m", "tests.memory_probe", how, source, str(anchors), str(records)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("source", ["tracked", "power"])
def test_sixteen_times_the_anchors_and_records_take_no_more_memory(source):
    small = growth("stream", source, 250, 250)
    assert growth("stream", source, 4000, 250) < 1.1 * small
    assert growth("stream", source, 250, 4000) < 1.1 * small


def test_holding_everything_fails_the_same_check():
    assert growth("hold", "power", 1000, 250) > 1.1 * growth("hold", "power", 250, 250)
    assert growth("hold", "power", 250, 1000) > 1.1 * growth("hold", "power", 250, 250)
