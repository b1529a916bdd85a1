"""Where data files are looked for, and the cache that their arrays go to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_gep.arguments import boolean
from lightning_gep.errors import ConfigurationError, MissingDataError
from recipes.data.cache import ArrayCache, Arrays
from recipes.data.files import Images
from recipes.data.image_sets import ImageSet

RECIPE = {"images": "N × C × H × W"}


@dataclass(frozen=True)
class Store:
    """A directory of files, the cache of arrays made from them, and whether to download what is missing."""

    directory: Path
    cache: ArrayCache
    download: bool = False

    @classmethod
    def at(cls, directory: str, cache_directory: str | None, download: bool) -> "Store":
        """From settings; the cache is below the directory by default."""
        boolean("download", download)
        for name, value in {"directory": directory, "cache_directory": cache_directory or directory}.items():
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"{name} must be a path, but it is {value!r}. Use e.g. data.", setting=name)
        place = Path(directory).expanduser()
        cache = place / "cache" if cache_directory is None else Path(cache_directory).expanduser()
        return cls(place, ArrayCache(cache), download)

    def load(self, image_set: ImageSet, parts: Sequence[str]) -> Images:
        """The images of some parts, one after the other; read from their files the first time.

        Raises MissingDataError if a part is neither there nor in the cache, which needs no files once it is made.
        """
        self.check(image_set, parts)

        def files() -> list[Path]:
            found = [image_set.files(self.directory, part) for part in parts]
            return [path for part in found for path in part] if all(found) else []

        def make() -> Arrays:
            read = [image_set.read(self.directory, part, download=self.download) for part in parts]
            return {"images": np.concatenate([x for x, _ in read]), "labels": np.concatenate([y for _, y in read])}

        arrays = self.cache.get(_entry(image_set, parts), RECIPE, files, make)
        return Images(arrays["images"], arrays["labels"])

    def check(self, image_set: ImageSet, parts: Sequence[str]) -> None:
        """Raises MissingDataError if files are missing that cannot be downloaded and are not in the cache."""
        for part in parts:
            if self.download or image_set.files(self.directory, part):
                continue
            if self.cache.read(_entry(image_set, parts), RECIPE) is None:
                first = image_set.parts[part].files[0]
                raise MissingDataError(
                    f"{image_set.title} ({part}) is not in directory={str(self.directory)!r}: put "
                    f"{image_set.name}_{part}.npz or the official files ({first}, …) there, or set data.download=true.",
                    setting="directory",
                )


def _entry(image_set: ImageSet, parts: Sequence[str]) -> str:
    return f"{image_set.name}-{'+'.join(parts)}"
