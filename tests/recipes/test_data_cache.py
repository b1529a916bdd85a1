import os

import numpy as np
import pytest

from recipes.data.cache import MANIFEST, ArrayCache

RECIPE = {"shape": (2, 3)}


class Maker:
    """Counts how often the arrays were made."""

    def __init__(self, value=1):
        self.value, self.calls = value, 0

    def __call__(self):
        self.calls += 1
        return {"images": np.full((5, 2, 3), self.value, np.uint8), "labels": np.arange(5)}


@pytest.fixture
def cache(tmp_path):
    return ArrayCache(tmp_path / "cache")


def test_arrays_are_made_once_and_mapped_afterwards(cache):
    make = Maker()
    for _ in range(2):
        arrays = cache.get("set", RECIPE, tuple, make)
        assert isinstance(arrays["images"], np.memmap)
        assert (arrays["images"] == 1).all()
        assert arrays["labels"].tolist() == [0, 1, 2, 3, 4]
    assert make.calls == 1


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
        lambda entry: (entry / MANIFEST).unlink(),
    ],
)
def test_a_damaged_or_incomplete_entry_is_made_again(damage, cache):
    make = Maker()
    cache.get("set", RECIPE, tuple, make)
    damage(cache.directory / "set")
    assert cache.read("set", RECIPE) is None
    assert (cache.get("set", RECIPE, tuple, make)["images"] == 1).all()
    cache.get("set", RECIPE, tuple, make)
    assert make.calls == 2


def test_an_entry_is_valid_for_its_recipe_and_its_sources_which_may_be_moved_or_deleted(cache, tmp_path):
    source, moved = tmp_path / "a.npz", tmp_path / "elsewhere" / "a.npz"
    source.write_text("one")
    make = Maker()
    before = cache.get("set", RECIPE, lambda: [source], make)["images"]
    assert cache.read("set", {"shape": (3, 2)}, lambda: [source]) is None
    moved.parent.mkdir()
    source.rename(moved)
    assert cache.read("set", RECIPE, lambda: [moved]) is not None
    assert cache.read("set", RECIPE, tuple) is not None
    moved.write_text("another")
    make.value = 2
    assert (cache.get("set", RECIPE, lambda: [moved], make)["images"] == 2).all()
    assert (before == 1).all(), "an array that is mapped survives its replacement"
