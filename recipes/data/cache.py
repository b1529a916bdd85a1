"""Arrays on disk that are whole or not there: made once from any source, memory-mapped at every later start."""

import json
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_gep.errors import ConfigurationError

try:
    import fcntl
except ImportError:  # Windows: two processes may do the same work there, and the first to finish is kept
    fcntl = None  # type: ignore[assignment]

VERSION = 1
MANIFEST = "manifest.json"

Arrays = dict[str, NDArray[Any]]
Recipe = Mapping[str, Any]


class ArrayCache:
    """A directory with one subdirectory for each entry: its arrays as .npy, and a manifest.

    The manifest holds what the entry was made from (the recipe, and the name, size and time of each source file) and a
    checksum of every array. An entry that is damaged, incomplete, or made from something else is not read. Entries are
    written under another name and then renamed, so a process that dies, or a second one at the same time, leaves
    nothing that is half done; what others have mapped stays readable.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def get(
        self,
        name: str,
        recipe: Recipe,
        sources: Sequence[Path] | None,
        make: Callable[[], tuple[Arrays, Sequence[Path]]],
    ) -> Arrays:
        """The entry, from `make` if it cannot be read: its arrays, and the files that they came from.

        `sources` are the files it should have been made from. None stands for those it was made from, as long as none
        of them has changed; it does not matter if they are gone. None in `recipe` stands for whatever it was, too.
        """
        found = self.read(name, recipe, sources)
        if found is None:
            with self.locked(name):
                found = self.read(name, recipe, sources)  # by another process, while this one waited
                if found is None:
                    self.write(name, recipe, *make())
                    found = self.read(name, recipe, sources=None)
        if found is None:
            raise ConfigurationError(
                f"cache_directory={str(self.directory)!r} does not keep what is written to it ({name} is damaged). "
                "Use a directory on another disk.",
                setting="cache_directory",
            )
        return found

    def read(self, name: str, recipe: Recipe, sources: Sequence[Path] | None = None) -> Arrays | None:
        """The arrays of an entry, memory-mapped, or None if it is not there, not whole, or made from something else."""
        try:
            manifest = json.loads((self.directory / name / MANIFEST).read_text())
            if manifest["version"] != VERSION or not _fits(manifest["recipe"], _plain(recipe)):
                return None
            if not _made_from(manifest["sources"], sources):
                return None
            arrays = {key: np.load(self._file(name, key), mmap_mode="r") for key in manifest["arrays"]}
            whole = bool(arrays) and all(_described(arrays[key]) == manifest["arrays"][key] for key in arrays)
            return arrays if whole else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
            return None

    def write(self, name: str, recipe: Recipe, arrays: Arrays, sources: Sequence[Path]) -> None:
        """Write an entry in the place of the one before. The caller holds its lock."""
        unfinished, replaced = (self.directory / f".{name}.{secrets.token_hex(4)}.{kind}" for kind in ("new", "old"))
        with _writing_to(self.directory):
            self._remove_leftovers(name)
            try:
                unfinished.mkdir()
                manifest = {"version": VERSION, "recipe": _plain(recipe), "sources": _identities(sources), "arrays": {}}
                for key, array in arrays.items():
                    # In row order, so that records lie together; only a copy that has to be made is made.
                    np.save(unfinished / f"{key}.npy", np.ascontiguousarray(array) if array.flags.fnc else array)
                    manifest["arrays"][key] = _described(np.load(unfinished / f"{key}.npy", mmap_mode="r"))
                (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1))
                if (self.directory / name).exists():
                    (self.directory / name).rename(replaced)
                unfinished.rename(self.directory / name)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.rmtree(replaced, ignore_errors=True)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Inside, no other process makes this entry. It ends with the process, however that ends."""
        with _writing_to(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            file = (self.directory / f".{name}.lock").open("a")
        with file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _file(self, name: str, key: str) -> Path:
        return self.directory / name / f"{key}.npy"

    def _remove_leftovers(self, name: str) -> None:
        """What a process that died has left; nobody else writes, because the lock is ours."""
        if fcntl is not None:
            for kind in ("new", "old"):
                for path in self.directory.glob(f".{name}.*.{kind}"):
                    shutil.rmtree(path, ignore_errors=True)


def checksum(array: NDArray[Any]) -> int:
    """CRC-32 of an array's bytes: against accidents, at several GB a second."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _described(array: NDArray[Any]) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.str, "crc32": checksum(array)}


def _plain(recipe: Recipe) -> Any:
    """A recipe as it comes back from JSON."""
    return json.loads(json.dumps(recipe))


def _fits(recorded: dict[str, Any], asked: dict[str, Any]) -> bool:
    return recorded.keys() == asked.keys() and all(asked[key] in (None, recorded[key]) for key in asked)


def _identities(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [{"path": str(path), "size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns} for path in files]


def _made_from(recorded: list[dict[str, Any]], files: Sequence[Path] | None) -> bool:
    """Whether these files, or those of the recorded ones that are still there, are as they were."""
    if files is None:
        recorded = [one for one in recorded if Path(one["path"]).exists()]
        files = [Path(one["path"]) for one in recorded]
    return [_unlocated(one) for one in recorded] == [_unlocated(one) for one in _identities(files)]


def _unlocated(identity: dict[str, Any]) -> tuple[str, int, int]:
    """A directory may be moved, or be reached by another path."""
    return Path(identity["path"]).name, identity["size"], identity["mtime_ns"]


@contextmanager
def _writing_to(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cache_directory={str(directory)!r} cannot be written to ({error.strerror or error}). Choose a directory "
            "of your own with enough space.",
            setting="cache_directory",
        ) from error
