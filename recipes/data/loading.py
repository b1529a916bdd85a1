"""From whatever source there is to arrays in the cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_gep.arguments import boolean
from lightning_gep.errors import ConfigurationError
from recipes.data.cache import ArrayCache, Arrays
from recipes.data.download import download
from recipes.data.formats.source import Images, Source
from recipes.data.image_sets import ImageSet


@dataclass(frozen=True)
class Store:
    """Where files are looked for, where arrays are kept, and whether what is missing may be downloaded."""

    directory: Path
    cache: ArrayCache
    download: bool = False

    @classmethod
    def at(cls, directory: str, cache_directory: str | None, download: bool) -> "Store":
        """From settings; the cache is below the directory unless it is somewhere else."""
        boolean("download", download)
        for name, value in {"directory": directory, "cache_directory": cache_directory or directory}.items():
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"{name} must be a path, but it is {value!r}. Use e.g. data.")
        place = Path(directory).expanduser()
        cache = place / "cache" if cache_directory is None else Path(cache_directory).expanduser()
        return cls(place, ArrayCache(cache), download)

    def load(self, image_set: ImageSet, parts: Sequence[str]) -> Images:
        """The images of some parts, one after the other; read from their source the first time."""
        name, recipe = f"{image_set.name}-{'+'.join(parts)}", {"images": "N × C × H × W"}
        found = {part: image_set.find(self.directory, part) for part in parts}
        missing = [part for part, source in found.items() if source is None]
        # A cache that is whole needs no source: who wants the space back may delete the files it was made from.
        if missing and not self.download and self.cache.read(name, recipe) is None:
            raise image_set.missing(self.directory, missing[0])

        def make() -> tuple[Arrays, list[Path]]:
            sources = [self.source(image_set, part) for part in parts]
            return _joined(image_set, sources), [path for source in sources for path in source.files]

        files = None if missing else [path for source in found.values() if source is not None for path in source.files]
        arrays = self.cache.get(name, recipe, files, make)
        return Images(arrays["images"], arrays["labels"])

    def source(self, image_set: ImageSet, part: str) -> Source:
        """The source of a part, downloaded if need be and allowed. Raises ConfigurationError if there is none."""
        source = image_set.find(self.directory, part)
        if source is None and self.download:
            download(image_set.torchvision_class, self.directory, **image_set.torchvision_arguments(part))
            source = image_set.find(self.directory, part)
        if source is None:
            raise image_set.missing(self.directory, part)
        return source


def _joined(image_set: ImageSet, sources: Sequence[Source]) -> Arrays:
    read = [_checked(source, image_set) for source in sources]
    if len(read) == 1:
        return {"images": read[0][0], "labels": read[0][1]}
    return {"images": np.concatenate([x for x, _ in read]), "labels": np.concatenate([y for _, y in read])}


def _checked(source: Source, image_set: ImageSet) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels, if they are what the data set has."""
    images, labels = source.read()
    where = ", ".join(path.name for path in source.files)
    if images.shape[1:] != image_set.shape:
        raise ConfigurationError(
            f"{where}: the images have the shape {times(images.shape[1:])}, but those of {image_set.title} have "
            f"{times(image_set.shape)} (channels × height × width). Is it the right file?"
        )
    if labels is None or not np.issubdtype(labels.dtype, np.integer) or len(labels) != len(images):
        raise ConfigurationError(f"{where}: there must be a whole number as a label for each of {len(images)} images.")
    if len(images) == 0 or labels.min() < 0 or labels.max() >= image_set.num_classes:
        raise ConfigurationError(
            f"{where}: there must be images, and their labels must lie in 0 … {image_set.num_classes - 1}. Is it the "
            "right file?"
        )
    return images, labels.astype(np.int64)


def times(shape: Sequence[int]) -> str:
    """A shape in words: 1 × 28 × 28."""
    return " × ".join(str(size) for size in shape)
