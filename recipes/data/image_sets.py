"""MNIST, SVHN, CIFAR-10 and CIFAR-100: what their images look like, and how their files are found and read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_gep.errors import ConfigurationError
from recipes.data.files import Images, Shape, optional, read_images


@dataclass(frozen=True)
class Part:
    """One part of a data set: torchvision's arguments for it, and its files."""

    arguments: Mapping[str, Any]
    files: tuple[str, ...]


@dataclass(frozen=True)
class ImageSet:
    """A public description: it takes no record to know any of it. The files are those that torchvision reads."""

    name: str
    title: str
    shape: Shape
    num_classes: int
    parts: Mapping[str, Part]

    @property
    def torchvision_class(self) -> str:
        """The name of torchvision's class."""
        return self.name.upper()

    def files(self, directory: Path, part: str) -> list[Path]:
        """The files of a part: an .npz of that name, or else the official files; empty unless all are there."""
        own = directory / f"{self.name}_{part}.npz"
        official = [directory / name for name in self.parts[part].files]
        return [own] if own.is_file() else official if all(path.is_file() for path in official) else []

    def read(self, directory: Path, part: str, *, download: bool = False) -> Images:
        """The images of a part. Raises ConfigurationError if the files are damaged or hold something else."""
        own = directory / f"{self.name}_{part}.npz"
        images, labels = read_images(own) if own.is_file() else self._official(directory, part, download)
        where = own.name if own.is_file() else f"{self.title} in {str(directory)!r}"
        if images.shape[1:] != self.shape:
            raise ConfigurationError(
                f"{where}: the images have the shape {_times(images.shape[1:])}, but those of {self.title} have "
                f"{_times(self.shape)} (channels × height × width). Is it the right file?"
            )
        if labels is None or len(images) == 0 or labels.min() < 0 or labels.max() >= self.num_classes:
            raise ConfigurationError(
                f"{where}: there must be images with labels in 0 … {self.num_classes - 1}. Is it the right file?"
            )
        return Images(images, labels.astype(np.int64))

    def _official(self, directory: Path, part: str, download: bool) -> Images:
        """Read by torchvision, which checks and unpacks archives and downloads what is missing if `download`."""
        make = getattr(optional("torchvision.datasets", self.title), self.torchvision_class)
        try:
            dataset = make(str(directory), download=download, **self.parts[part].arguments)
        except (OSError, EOFError, ValueError, RuntimeError, AssertionError) as error:
            reason, task = " ".join(str(error).split()), "download" if download else "read"
            raise ConfigurationError(
                f"torchvision could not {task} {self.title} in {str(directory)!r} ({reason}). Delete damaged files and "
                "get them again (docs/data.md), or set data.download=true."
            ) from error
        images = np.asarray(dataset.data)
        labels = np.asarray(dataset.labels if hasattr(dataset, "labels") else dataset.targets)
        if images.ndim == 3:
            return Images(images[:, None], labels)
        return Images(images if images.shape[1:] == self.shape else images.transpose(0, 3, 1, 2), labels)


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _train_and_test(train: tuple[str, ...], test: tuple[str, ...]) -> dict[str, Part]:
    return {"train": Part({"train": True}, train), "test": Part({"train": False}, test)}


MNIST = ImageSet(
    name="mnist",
    title="MNIST",
    shape=(1, 28, 28),
    num_classes=10,
    parts=_train_and_test(
        ("MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte"),
        ("MNIST/raw/t10k-images-idx3-ubyte", "MNIST/raw/t10k-labels-idx1-ubyte"),
    ),
)
SVHN = ImageSet(
    name="svhn",
    title="SVHN",
    shape=(3, 32, 32),
    num_classes=10,
    parts={part: Part({"split": part}, (f"{part}_32x32.mat",)) for part in ("train", "test", "extra")},
)
CIFAR_10 = ImageSet(
    name="cifar10",
    title="CIFAR-10",
    shape=(3, 32, 32),
    num_classes=10,
    parts=_train_and_test(
        tuple(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)), ("cifar-10-batches-py/test_batch",)
    ),
)
CIFAR_100 = ImageSet(
    name="cifar100",
    title="CIFAR-100",
    shape=(3, 32, 32),
    num_classes=100,
    parts=_train_and_test(("cifar-100-python/train",), ("cifar-100-python/test",)),
)
PRIVATE = {image_set.name: image_set for image_set in (MNIST, SVHN, CIFAR_10)}
