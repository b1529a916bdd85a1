"""The "python version" of CIFAR-10 and CIFAR-100: pickled dictionaries, in a folder or still in their archive."""

import codecs
import io
import pickle
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.data.formats.source import Images, Source

ARRAY_PARTS = {
    "ndarray": np.ndarray,
    "dtype": np.dtype,
    "_reconstruct": np.empty(0).__reduce__()[0],
    "encode": codecs.encode,
}
"""All that a pickled array needs, under whatever module Python 2's numpy or today's keeps it."""
ARRAY_MODULES = {"numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs"}


@dataclass(frozen=True)
class Layout:
    """The names inside one of the two data sets."""

    folder: str
    archive: str
    batches: dict[str, tuple[str, ...]]
    labels: str

    def find(self, directory: Path, part: str) -> Source | None:
        """The batches of a part in their folder, or the archive that holds them."""
        files = tuple(directory / self.folder / name for name in self.batches[part])
        if all(path.is_file() for path in files):
            return Source(files, self._read)
        archive = directory / self.archive
        return Source((archive,), lambda files: self._read_archive(files, part)) if archive.is_file() else None

    def _read(self, files: tuple[Path, ...]) -> Images:
        return self._together(path.read_bytes() for path in files)

    def _read_archive(self, files: tuple[Path, ...], part: str) -> Images:
        with tarfile.open(files[0], "r:gz") as archive:
            members = (archive.extractfile(f"{self.folder}/{name}") for name in self.batches[part])
            return self._together(member.read() for member in members if member is not None)

    def _together(self, contents: Iterator[bytes]) -> Images:
        batches = [_ArraysOnly(io.BytesIO(content), encoding="latin1").load() for content in contents]
        images = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
        return Images(images, np.concatenate([batch[self.labels] for batch in batches]))


CIFAR10 = Layout(
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    batches={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    labels="labels",
)
CIFAR100 = Layout(
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    batches={"train": ("train",), "test": ("test",)},
    labels="fine_labels",
)


class _ArraysOnly(pickle.Unpickler):
    """A pickle can run any code; this one can only make arrays and plain values."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in ARRAY_MODULES or name not in ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a batch of images has no use for")
        return ARRAY_PARTS[name]
