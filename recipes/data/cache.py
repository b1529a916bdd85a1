"""Arrays on disk that are whole or absent: made once, memory-mapped at every later start."""

import hashlib
import json
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_gep.errors import ConfigurationError

CHECKSUMS = "checksums.json"

Arrays = dict[str, NDArray[Any]]


def cached(directory: Path, name: str, recipe: object, make: Callable[[], Arrays]) -> Arrays:
    """What `make` gives for a recipe, which says what it is made from; made again if its files are damaged.

    An entry is written under a temporary name, then renamed: a process that dies leaves nothing half done.
    """
    made_from = hashlib.blake2b(json.dumps(recipe).encode(), digest_size=8).hexdigest()
    entry = directory / f"{name}-{made_from}"
    found = _read(entry)
    if found is not None:
        return found
    arrays = make()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=directory))
        for key, array in arrays.items():
            np.save(new / f"{key}.npy", np.ascontiguousarray(array))  # records lie next to each other
        (new / CHECKSUMS).write_text(json.dumps({key: checksum(array) for key, array in arrays.items()}))
        shutil.rmtree(entry, ignore_errors=True)
        new.rename(entry)
    except OSError as error:
        raise ConfigurationError(
            f"cache_directory={str(directory)!r} cannot be written to ({error.strerror or error}). Choose a writable "
            "directory with enough space.",
            setting="cache_directory",
        ) from error
    return _read(entry) or arrays


def checksum(array: NDArray[Any]) -> int:
    """CRC-32 of an array's bytes: it detects accidents, at several GB per second."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _read(entry: Path) -> Arrays | None:
    """The arrays of an entry; None if it is absent or damaged."""
    try:
        sums = json.loads((entry / CHECKSUMS).read_text())
        arrays = {key: np.load(entry / f"{key}.npy", mmap_mode="r") for key in sums}
        return arrays if {key: checksum(array) for key, array in arrays.items()} == sums else None
    except (OSError, ValueError, EOFError):
        return None
