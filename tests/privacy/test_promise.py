"""The ten points name functions and tests that exist."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import lightning_gep.privacy

POINTS = re.split(r"\n\d+\. ", lightning_gep.privacy.__doc__)[1:]
ROOT = Path(__file__).parents[2]


def resolve(dotted):
    """The object at `room.module.name` or `room.module.Class.name`."""
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(["lightning_gep", *parts[:split]]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            found = getattr(found, name)
        return found
    raise AssertionError(f"there is no module for {dotted}")


def test_there_are_ten_points():
    assert len(POINTS) == 10


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.split(":")[0][:40])
def test_every_function_and_test_of_a_point_exists(point):
    functions = re.findall(r"`(\w+\.[\w.]+)`", point)
    assert functions
    for function in functions:
        assert resolve(function) is not None
    ((file, name),) = re.findall(r"(tests/[\w/]+\.py)::(\w+)", point)
    assert f"\ndef {name}(" in (ROOT / file).read_text("utf-8")
