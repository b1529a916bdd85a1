import os

import numpy as np
import pytest

from recipes.data.cache import CHECKSUMS, cached


class Maker:
    """Counts how often the arrays were made."""

    calls = 0

    def __call__(self):
        self.calls += 1
        return {"images": np.full((5, 2, 3), self.calls, np.uint8), "labels": np.arange(5)}


def flip_a_byte(entry):
    content = bytearray((entry / "images.npy").read_bytes())
    content[-3] ^= 1
    (entry / "images.npy").write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        lambda entry: os.truncate(entry / "images.npy", 100),
        lambda entry: (entry / "labels.npy").unlink(),
        lambda entry: (entry / CHECKSUMS).unlink(),
    ],
)
def test_a_damaged_or_incomplete_entry_is_made_again(damage, tmp_path):
    make = Maker()
    for _ in range(2):
        arrays = cached(tmp_path, "set", "recipe", make)
        assert isinstance(arrays["images"], np.memmap)
        assert arrays["labels"].tolist() == [0, 1, 2, 3, 4]
    assert make.calls == 1
    (entry,) = tmp_path.iterdir()
    damage(entry)
    for _ in range(2):
        assert (cached(tmp_path, "set", "recipe", make)["images"] == 2).all()
    assert [path.name for path in tmp_path.iterdir()] == [entry.name], "nothing is left of an attempt"


def test_another_recipe_is_another_entry(tmp_path):
    make = Maker()
    for recipe in ("one", "another", "one"):
        cached(tmp_path, "set", recipe, make)
    assert make.calls == 2
