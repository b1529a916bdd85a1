"""The data sets of the paper: what their images look like, and where their files are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_gep.arguments import one_of
from lightning_gep.errors import MissingDataError
from recipes.data.formats import idx, npz, svhn
from recipes.data.formats.cifar import CIFAR10, CIFAR100
from recipes.data.formats.image_files import Shape
from recipes.data.formats.source import Source


@dataclass(frozen=True)
class ImageSet:
    """A public description: no record is needed to know any of it."""

    name: str
    title: str
    shape: Shape
    num_classes: int
    parts: Mapping[str, str]
    """The official files of each part, in words."""
    official: Callable[[Path, str], Source | None]
    torchvision_class: str
    torchvision_arguments: Callable[[str], dict[str, Any]] = field(default=lambda part: {"train": part == "train"})

    def find(self, directory: Path, part: str) -> Source | None:
        """The source of a part: an .npz of that name, or else the official files."""
        return npz.find(directory / f"{self.name}_{part}.npz") or self.official(directory, part)

    def missing(self, directory: Path, part: str) -> MissingDataError:
        """What to say where a part is not found."""
        return MissingDataError(
            f"{self.title} ({part}) is not in directory={str(directory)!r}: put {self.name}_{part}.npz or "
            f"{self.parts[part]} there, or set data.download=true."
        )


MNIST = ImageSet(
    name="mnist",
    title="MNIST",
    shape=(1, 28, 28),
    num_classes=10,
    parts={
        "train": "train-images-idx3-ubyte(.gz) and train-labels-idx1-ubyte(.gz)",
        "test": "t10k-images-idx3-ubyte(.gz) and t10k-labels-idx1-ubyte(.gz)",
    },
    official=idx.find,
    torchvision_class="MNIST",
)
SVHN = ImageSet(
    name="svhn",
    title="SVHN",
    shape=(3, 32, 32),
    num_classes=10,
    parts={part: f"{part}_32x32.mat" for part in ("train", "test", "extra")},
    official=svhn.find,
    torchvision_class="SVHN",
    torchvision_arguments=lambda part: {"split": part},
)
CIFAR_10 = ImageSet(
    name="cifar10",
    title="CIFAR-10",
    shape=(3, 32, 32),
    num_classes=10,
    parts=dict.fromkeys(("train", "test"), f"{CIFAR10.archive} (or its folder {CIFAR10.folder})"),
    official=CIFAR10.find,
    torchvision_class="CIFAR10",
)
CIFAR_100 = ImageSet(
    name="cifar100",
    title="CIFAR-100",
    shape=(3, 32, 32),
    num_classes=100,
    parts=dict.fromkeys(("train", "test"), f"{CIFAR100.archive} (or its folder {CIFAR100.folder})"),
    official=CIFAR100.find,
    torchvision_class="CIFAR100",
)
PRIVATE = {image_set.name: image_set for image_set in (MNIST, SVHN, CIFAR_10)}


def image_set(name: str) -> ImageSet:
    """The data set of that name to train on."""
    return PRIVATE[one_of("name", name, PRIVATE)]
