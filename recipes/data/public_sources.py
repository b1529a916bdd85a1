"""ImageNet, CIFAR-100 or a folder of pictures as public images: drawn, then resized and greyed."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_gep.arguments import one_of, positive_integer, whole_number
from lightning_gep.errors import ConfigurationError, MissingDataError
from recipes.data.files import Shape, fitted, list_pictures, optional, read_images
from recipes.data.image_sets import CIFAR_100
from recipes.data.public import PublicImages, label_choice
from recipes.data.records import ImageRecords
from recipes.data.store import Store

Pictures = Sequence[Path] | NDArray[Any]
"""Files, or bytes N × channels × height × width."""


class DrawnImages(PublicImages):
    """`count` pictures (None: all), drawn by `seed` and brought into the shape of the private images."""

    def __init__(
        self,
        directory: str = "data",
        download: bool = False,
        count: int | None = 2000,
        seed: int = 0,
        labels: str | bool = "random",
    ) -> None:
        if count is not None:
            positive_integer("count", count, "It is the number of public images, e.g. 2000; null takes all.")
        self.store = Store.at(directory, download)
        self.count, self.seed, self.labels = count, whole_number("seed", seed), label_choice(labels)

    @abstractmethod
    def open(self) -> tuple[Pictures, NDArray[Any] | None]:
        """All pictures and their labels. Only the drawn ones are read from files."""

    @abstractmethod
    def check_files(self) -> None:
        """Raises MissingDataError if there are no pictures."""

    def records(self, shape: Shape) -> ImageRecords:
        """The pictures, with their own labels if they have any."""
        self.check_files()
        pictures, labels = self.open()
        rows = self.drawn(len(pictures))
        chosen = pictures[rows] if isinstance(pictures, np.ndarray) else [pictures[row] for row in rows]
        return ImageRecords(fitted(chosen, shape), None if labels is None else labels[rows])


class ImageNet(DrawnImages):
    """`imagenet32_aux.npz` in the directory, or else `imagenet/` in it as torchvision's ImageNet reads it."""

    name = "imagenet"

    def __init__(
        self,
        directory: str = "data",
        split: str = "val",
        **drawn: Any,
    ) -> None:
        super().__init__(directory, **drawn)
        self.split = one_of("split", split, ("val", "train"))
        self._npz, self._folder = self.store.directory / "imagenet32_aux.npz", self.store.directory / "imagenet"

    def check_files(self) -> None:
        """Raises MissingDataError if neither is there."""
        if not self._npz.is_file() and not self._folder.is_dir():
            raise MissingDataError(
                f"ImageNet is not in directory={str(self.store.directory)!r}: put imagenet32_aux.npz there, or a "
                "folder imagenet as torchvision reads it, or use aux=imagenet_folder aux.directory=FOLDER.",
                setting="directory",
            )

    def open(self) -> tuple[Pictures, NDArray[Any] | None]:
        """The arrays, or the files of torchvision's split."""
        if self._npz.is_file():
            return read_images(self._npz)
        try:
            samples = optional("torchvision.datasets", "ImageNet").ImageNet(str(self._folder), split=self.split).samples
        except (RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ConfigurationError(
                f"torchvision cannot read ImageNet's {self.split} in {str(self._folder)!r} ({reason}). For pictures "
                f"without ImageNet's layout use aux=imagenet_folder aux.directory={self._folder}."
            ) from error
        return [Path(path) for path, _ in samples], np.array([label for _, label in samples], dtype=np.int64)


class ImageFolder(DrawnImages):
    """All pictures in a folder and below; the folders in it are classes, in alphabetical order."""

    name = "folder"

    def __init__(self, directory: str = "data/imagenet", **drawn: Any) -> None:
        super().__init__(directory, **drawn)

    def check_files(self) -> None:
        """Raises MissingDataError if there is no picture."""
        if not list_pictures(self.store.directory):
            raise MissingDataError(
                f"There are no images in directory={str(self.store.directory)!r}: put .jpg or .png files there, in "
                "folders if you like, or set aux.directory.",
                setting="directory",
            )

    def open(self) -> tuple[Pictures, NDArray[Any] | None]:
        """The files; without labels if some are in no folder."""
        directory, files = self.store.directory, list_pictures(self.store.directory)
        names = [path.relative_to(directory).parts[0] if path.parent != directory else "" for path in files]
        classes = sorted(set(names))
        return files, None if "" in classes else np.array([classes.index(name) for name in names], dtype=np.int64)


class Cifar100(DrawnImages):
    """`cifar100_aux.npz` in the directory, or CIFAR-100's training images as an .npz or in the official format."""

    name = "cifar100"

    def __init__(self, directory: str = "data", **drawn: Any) -> None:
        super().__init__(directory, **drawn)
        self._own = self.store.directory / "cifar100_aux.npz"

    def check_files(self) -> None:
        """Raises MissingDataError if it is not there and must not be downloaded."""
        there = self._own.is_file() or self.store.download or CIFAR_100.files(self.store.directory, "train")
        if not there:
            raise MissingDataError(
                f"CIFAR-100 is not in directory={str(self.store.directory)!r}: put cifar100_aux.npz or the folder "
                "cifar-100-python there, or set aux.download=true.",
                setting="directory",
            )

    def open(self) -> tuple[Pictures, NDArray[Any] | None]:
        """The arrays, downloaded if need be and allowed."""
        if self._own.is_file():
            return read_images(self._own)
        return CIFAR_100.read(self.store.directory, "train", download=self.store.download)
