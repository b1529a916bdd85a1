import json
import multiprocessing
import os

import numpy as np
import pytest

from lightning_gep.errors import ConfigurationError
from recipes.data.cache import MANIFEST, ArrayCache

RECIPE = {"shape": (2, 3)}


class Maker:
    """Counts how often the arrays were made."""

    def __init__(self, *sources, value=1):
        self.sources, self.value, self.calls = sources, value, 0

    def __call__(self):
        self.calls += 1
        return {"images": np.full((5, 2, 3), self.value, np.uint8), "labels": np.arange(5)}, self.sources


@pytest.fixture
def cache(tmp_path):
    return ArrayCache(tmp_path / "cache")


def test_arrays_are_made_once_and_mapped_afterwards(cache):
    make = Maker()
    first, second = (cache.get("set", RECIPE, None, make) for _ in range(2))
    assert make.calls == 1
    for arrays in (first, second):
        assert isinstance(arrays["images"], np.memmap)
        assert arrays["images"].dtype == np.uint8
        assert (arrays["images"] == 1).all()
        assert arrays["labels"].tolist() == [0, 1, 2, 3, 4]


def flip_a_byte(entry):
    content = bytearray((entry / "images.npy").read_bytes())
    content[-3] ^= 1
    (entry / "images.npy").write_bytes(content)


def cut(name):
    return lambda entry: os.truncate(entry / name, (entry / name).stat().st_size - 1)


def replace_by_another_array(entry):
    np.save(entry / "labels.npy", np.arange(6))


def rewrite_manifest(entry, **changed):
    manifest = json.loads((entry / MANIFEST).read_text())
    (entry / MANIFEST).write_text(json.dumps({**manifest, **changed}))


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        cut("images.npy"),
        cut(MANIFEST),
        replace_by_another_array,
        lambda entry: (entry / "labels.npy").unlink(),
        lambda entry: (entry / MANIFEST).unlink(),
        lambda entry: (entry / MANIFEST).write_text("[]"),
        lambda entry: rewrite_manifest(entry, recipe=[]),
        lambda entry: rewrite_manifest(entry, arrays={}),
        lambda entry: (entry / "images.npy").write_bytes(b""),
    ],
)
def test_what_is_damaged_or_incomplete_is_made_again(damage, cache):
    make = Maker()
    cache.get("set", RECIPE, None, make)
    damage(cache.directory / "set")
    assert cache.read("set", RECIPE) is None
    assert (cache.get("set", RECIPE, None, make)["images"] == 1).all()
    assert make.calls == 2
    cache.get("set", RECIPE, None, make)
    assert make.calls == 2


def test_another_recipe_or_source_is_not_taken_for_this_one(cache, tmp_path):
    source, other = tmp_path / "a.npz", tmp_path / "b.npz"
    source.write_text("one")
    other.write_text("one")
    make = Maker(source)
    cache.get("set", RECIPE, [source], make)
    assert cache.read("set", {"shape": (3, 2)}, [source]) is None
    assert cache.read("set", RECIPE, [other]) is None
    assert cache.read("set", RECIPE, [source, other]) is None
    assert cache.read("set", RECIPE, [source]) is not None
    source.write_text("another")
    assert cache.read("set", RECIPE, [source]) is None
    assert cache.read("set", RECIPE, None) is None
    make.value = 2
    assert (cache.get("set", RECIPE, [source], make)["images"] == 2).all()


def test_a_source_may_be_moved_or_deleted_once_the_arrays_are_there(cache, tmp_path):
    source = tmp_path / "a.npz"
    source.write_text("one")
    make = Maker(source)
    cache.get("set", RECIPE, [source], make)
    (tmp_path / "elsewhere").mkdir()
    moved = source.rename(tmp_path / "elsewhere" / "a.npz")
    cache.get("set", RECIPE, [moved], make)
    moved.unlink()
    cache.get("set", RECIPE, None, make)
    assert make.calls == 1


def test_a_writer_that_fails_leaves_the_entry_before_it_and_nothing_else(cache, monkeypatch):
    cache.get("set", RECIPE, None, Maker())
    (cache.directory / ".set.0123.new").mkdir()  # of a process that was killed
    with monkeypatch.context() as context:
        context.setattr(np, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(ConfigurationError, match=r"cache_directory=.* cannot be written to \(No space left"):
            cache.get("set", {"shape": "another"}, None, Maker(value=2))
    assert {path.name for path in cache.directory.iterdir()} == {"set", ".set.lock"}
    assert (cache.get("set", RECIPE, None, Maker(value=3))["images"] == 1).all()


def test_what_one_process_has_mapped_survives_its_replacement(cache):
    before = cache.get("set", RECIPE, None, Maker())["images"]
    cache.get("set", {"shape": "another"}, None, Maker(value=2))
    assert (before == 1).all()


def _get_at_once(directory, barrier, log):
    def make():
        with log.open("a") as file:
            file.write("made\n")
        return {"images": np.random.default_rng().integers(0, 256, 1000, dtype=np.uint8)}, []

    cache = ArrayCache(directory)
    barrier.wait()
    found = cache.get("set", RECIPE, None, make)["images"].tolist()
    with log.open("a") as file:
        file.write(f"{sum(found)}\n")


def test_processes_that_start_together_make_it_once_and_see_the_same(tmp_path):
    context, log = multiprocessing.get_context("fork"), tmp_path / "log"
    barrier = context.Barrier(4)
    workers = [context.Process(target=_get_at_once, args=(tmp_path / "cache", barrier, log)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert [worker.exitcode for worker in workers] == [0] * 4
    lines = log.read_text().split()
    assert lines.count("made") == 1
    assert len(lines) == 5
    assert len(set(lines)) == 2


def test_a_cache_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cache_directory='.*file' cannot be written to"):
        ArrayCache(tmp_path / "file").get("set", RECIPE, None, Maker())
