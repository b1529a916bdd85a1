"""Arrays on disk that are whole or absent: made once from any source, memory-mapped at every later start."""

import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from lightning_gep.errors import ConfigurationError

VERSION = 1
MANIFEST = "manifest.json"

Arrays = dict[str, NDArray[Any]]
Recipe = Mapping[str, Any]
Sources = Callable[[], Sequence[Path]]


class ArrayCache:
    """A directory with one subdirectory per entry: its arrays as .npy files, and a manifest.

    The manifest has what the entry was made from (the recipe, and name, size and time of each source file) and a
    checksum of every array. An entry that is damaged, incomplete or made from something else is made again. Entries are
    written under a temporary name, then renamed: a process that dies leaves nothing half done, and arrays that other
    processes have mapped stay readable.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def get(self, name: str, recipe: Recipe, sources: Sources, make: Callable[[], Arrays]) -> Arrays:
        """The entry, made if it cannot be read. It is valid without its sources, which may be deleted."""
        found = self.read(name, recipe, sources)
        if found is None:
            with _writing_to(self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
                lock = FileLock(self.directory / f".{name}.lock")
                lock.acquire()
            try:
                found = self.read(name, recipe, sources)  # another process may have made it meanwhile
                if found is None:
                    self._write(name, recipe, make(), sources)
                    found = self.read(name, recipe, sources)
            finally:
                lock.release()
        assert found is not None, f"{self.directory / name} was written and cannot be read"
        return found

    def read(self, name: str, recipe: Recipe, sources: Sources = tuple) -> Arrays | None:
        """The arrays of an entry, memory-mapped; None if it is absent, damaged, or made from something else."""
        try:
            manifest = json.loads((self.directory / name / MANIFEST).read_text())
            if manifest["version"] != VERSION or manifest["recipe"] != _plain(recipe):
                return None
            now = _identities(sources())
            if now and now != [{**one, "path": Path(one["path"]).name} for one in manifest["sources"]]:
                return None
            arrays = {key: np.load(self.directory / name / f"{key}.npy", mmap_mode="r") for key in manifest["arrays"]}
            return arrays if {key: _described(array) for key, array in arrays.items()} == manifest["arrays"] else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
            return None

    def _write(self, name: str, recipe: Recipe, arrays: Arrays, sources: Sources) -> None:
        """Replace an entry. The caller holds its lock."""
        new, old = (self.directory / f".{name}.{kind}" for kind in ("new", "old"))
        with _writing_to(self.directory):
            for path in (new, old):
                shutil.rmtree(path, ignore_errors=True)  # left by a process that died
            new.mkdir()
            for key, array in arrays.items():
                np.save(new / f"{key}.npy", np.ascontiguousarray(array))  # records lie next to each other
            described = {key: _described(np.load(new / f"{key}.npy", mmap_mode="r")) for key in arrays}
            manifest = {"version": VERSION, "recipe": _plain(recipe), "sources": _identities(sources())}
            (new / MANIFEST).write_text(json.dumps({**manifest, "arrays": described}, indent=1))
            if (self.directory / name).exists():
                (self.directory / name).rename(old)
            new.rename(self.directory / name)
            shutil.rmtree(old, ignore_errors=True)


def checksum(array: NDArray[Any]) -> int:
    """CRC-32 of an array's bytes: it detects accidents, at several GB per second."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _described(array: NDArray[Any]) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.str, "crc32": checksum(array)}


def _plain(recipe: Recipe) -> Any:
    """The recipe as it comes back from JSON."""
    return json.loads(json.dumps(recipe))


def _identities(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Files by name, size and time: their directory may be moved."""
    return [{"path": path.name, "size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns} for path in files]


@contextmanager
def _writing_to(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cache_directory={str(directory)!r} cannot be written to ({error.strerror or error}). Choose a writable "
            "directory with enough space.",
            setting="cache_directory",
        ) from error
