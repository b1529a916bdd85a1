"""Many pictures to choose from, of which only the chosen ones are opened."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipes.data.formats.image_files import Shape, fit_images, list_images, read_images
from recipes.data.formats.source import Source


class Album(ABC):
    """Numbered pictures; `labels` is None where they have none."""

    labels: NDArray[Any] | None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, rows: Sequence[int], shape: Shape) -> NDArray[Any]:
        """Those pictures as bytes N × channels × height × width, in that shape."""

    @abstractmethod
    def files(self, rows: Sequence[int]) -> Sequence[Path]:
        """The files that those pictures are in."""


class ArrayAlbum(Album):
    """The pictures of a source that is read as a whole."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.images, self.labels = source.read()

    def __len__(self) -> int:
        return len(self.images)

    def read(self, rows: Sequence[int], shape: Shape) -> NDArray[Any]:
        """See Album."""
        return fit_images(self.images[rows], shape)

    def files(self, rows: Sequence[int]) -> Sequence[Path]:
        """See Album."""
        return self.source.files


class FileAlbum(Album):
    """Pictures in a file each."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int] | None) -> None:
        self.all_files, self.labels = files, None if labels is None else np.array(labels, dtype=np.int64)

    @classmethod
    def of_folder(cls, directory: Path) -> "FileAlbum":
        """All pictures below a folder. The folders in it are the classes, in alphabetical order, if there are any."""
        files = list_images(directory)
        names = [path.relative_to(directory).parts[0] if path.parent != directory else "" for path in files]
        classes = {name: label for label, name in enumerate(sorted(set(names)))}
        return cls(files, None if "" in classes else [classes[name] for name in names])

    def __len__(self) -> int:
        return len(self.all_files)

    def read(self, rows: Sequence[int], shape: Shape) -> NDArray[Any]:
        """See Album."""
        return read_images(self.files(rows), shape)

    def files(self, rows: Sequence[int]) -> Sequence[Path]:
        """See Album."""
        return [self.all_files[row] for row in rows]
