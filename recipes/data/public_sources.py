"""ImageNet, CIFAR-100 or a folder of pictures as public images: chosen, resized and greyed once, then cached."""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.arguments import one_of, positive_integer, whole_number
from lightning_gep.errors import ConfigurationError, MissingDataError
from recipes.data.albums import Album, ArrayAlbum, FileAlbum
from recipes.data.cache import Arrays
from recipes.data.download import torchvision_datasets
from recipes.data.formats import npz
from recipes.data.formats.image_files import Shape, list_images
from recipes.data.formats.source import Source
from recipes.data.image_sets import CIFAR_100
from recipes.data.loading import Store
from recipes.data.public import PublicImages, label_choice
from recipes.data.records import ImageRecords


class CachedImages(PublicImages):
    """`count` images of an album (None: all of them), drawn by `seed`, in the cache in the shape they are needed in."""

    def __init__(
        self,
        directory: str = "data",
        cache_directory: str | None = None,
        download: bool = False,
        count: int | None = 2000,
        seed: int = 0,
        labels: str | bool = "random",
    ) -> None:
        if count is not None:
            positive_integer("count", count, "It is the number of public images, e.g. 2000; null takes all.")
        self.store = Store.at(directory, cache_directory, download)
        self.count, self.seed, self.labels = count, whole_number("seed", seed), label_choice(labels)

    @abstractmethod
    def open(self) -> Album:
        """All of the pictures. Raises ConfigurationError if there are none."""

    def sources(self) -> Sequence[Path] | None:
        """The files the cache should have been made from, where that can be told without opening anything."""
        return None

    def details(self) -> dict[str, str | None]:
        """What else decides which pictures there are; None where only the source could tell, and it is gone."""
        # A cache below its directory may be moved with it; one elsewhere may be that of several.
        place = self.store.directory.resolve()
        return {"directory": None if self.store.cache.directory.resolve().is_relative_to(place) else str(place)}

    def records(self, shape: Shape) -> ImageRecords:
        """The images, with their own labels if they have any."""
        name = f"{self.name}-{'x'.join(map(str, shape))}-{self.count or 'all'}-seed{self.seed}"
        recipe = {"shape": shape, **self.details()}
        arrays = self.store.cache.get(name, recipe, self.sources(), lambda: self._make(shape))
        return ImageRecords(arrays["images"], arrays.get("labels"))

    def _make(self, shape: Shape) -> tuple[Arrays, Sequence[Path]]:
        album = self.open()
        rows = self.drawn(len(album))
        arrays = {"images": album.read(rows, shape)}
        if album.labels is not None:
            arrays["labels"] = album.labels[rows]
        return arrays, album.files(rows)


class ImageNet(CachedImages):
    """`imagenet32_aux.npz` in the directory, or else `imagenet/` in it as torchvision's ImageNet reads it."""

    name = "imagenet"

    def __init__(
        self,
        directory: str = "data",
        cache_directory: str | None = None,
        split: str = "val",
        count: int | None = 2000,
        seed: int = 0,
        labels: str | bool = "random",
    ) -> None:
        super().__init__(directory, cache_directory, count=count, seed=seed, labels=labels)
        self.split = one_of("split", split, ("val", "train"))

    def open(self) -> Album:
        """The arrays, or the files of torchvision's split."""
        arrays = npz.find(self._npz)
        if arrays is not None:
            return ArrayAlbum(arrays)
        if not self._folder.is_dir():
            raise MissingDataError(
                f"ImageNet is not in directory={str(self.store.directory)!r}: put imagenet32_aux.npz there, or "
                "ImageNet as torchvision reads it into a folder imagenet there, or use aux=imagenet_folder "
                "aux.directory=<a folder of images>."
            )
        try:
            samples = torchvision_datasets().ImageNet(str(self._folder), split=self.split).samples
        except (RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ConfigurationError(
                f"torchvision cannot read ImageNet's {self.split} in {str(self._folder)!r} ({reason}). For pictures "
                f"alone use aux=imagenet_folder aux.directory={self._folder}."
            ) from error
        return FileAlbum([Path(path) for path, _ in samples], [label for _, label in samples])

    def sources(self) -> Sequence[Path] | None:
        """The .npz, if that is what would be read."""
        return [self._npz] if self._npz.is_file() else None

    def details(self) -> dict[str, str | None]:
        """Which split, and whether they are those of the .npz or of the folder."""
        there = (path.name for path in (self._npz, self._folder) if path.exists())
        return {**super().details(), "split": self.split, "from": next(there, None)}

    @property
    def _npz(self) -> Path:
        return self.store.directory / "imagenet32_aux.npz"

    @property
    def _folder(self) -> Path:
        return self.store.directory / "imagenet"


class ImageFolder(CachedImages):
    """All pictures in a folder and below; folders in it are classes."""

    name = "folder"

    def __init__(
        self,
        directory: str = "data/imagenet",
        cache_directory: str | None = None,
        count: int | None = 2000,
        seed: int = 0,
        labels: str | bool = "random",
    ) -> None:
        super().__init__(directory, cache_directory, count=count, seed=seed, labels=labels)

    def open(self) -> Album:
        """The list of files."""
        album = FileAlbum.of_folder(self.store.directory)
        if len(album) == 0:
            raise ConfigurationError(
                f"There are no images in directory={str(self.store.directory)!r}: put .jpg or .png files there, in "
                "folders if you like, or set aux.directory."
            )
        return album

    def details(self) -> dict[str, str | None]:
        """The names of all pictures too: with one more, another draw is due."""
        names = "\n".join(
            path.relative_to(self.store.directory).as_posix() for path in list_images(self.store.directory)
        )
        return {**super().details(), "pictures": hashlib.sha256(names.encode()).hexdigest() if names else None}


class Cifar100(CachedImages):
    """`cifar100_aux.npz` in the directory, or CIFAR-100's training images as an .npz or in the official format."""

    name = "cifar100"

    def open(self) -> Album:
        """The arrays, downloaded if that is asked for."""
        source = self._find()
        if source is None and self.store.download:
            source = self.store.source(CIFAR_100, "train")
        if source is None:
            raise MissingDataError(
                f"{CIFAR_100.title} is not in directory={str(self.store.directory)!r}: put cifar100_aux.npz or "
                f"{CIFAR_100.parts['train']} there, or set aux.download=true."
            )
        return ArrayAlbum(source)

    def sources(self) -> Sequence[Path] | None:
        """The files that would be read, if there are any."""
        source = self._find()
        return None if source is None else source.files

    def _find(self) -> Source | None:
        directory = self.store.directory
        return npz.find(directory / "cifar100_aux.npz") or CIFAR_100.find(directory, "train")
