"""Where data files are looked for, and where arrays made from them are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_gep.arguments import boolean
from lightning_gep.errors import ConfigurationError, MissingDataError
from recipes.data.files import Images
from recipes.data.image_sets import ImageSet


@dataclass(frozen=True)
class Store:
    """A directory of files, the one where arrays made from them are kept, and whether to download what is missing."""

    directory: Path
    cache: Path
    download: bool = False

    @classmethod
    def at(cls, directory: str, cache_directory: str | None, download: bool) -> "Store":
        """From settings; the cache is below the directory by default."""
        boolean("download", download)
        for name, value in {"directory": directory, "cache_directory": cache_directory or directory}.items():
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"{name} must be a path, but it is {value!r}. Use e.g. data.", setting=name)
        place = Path(directory).expanduser()
        return cls(place, place / "cache" if cache_directory is None else Path(cache_directory).expanduser(), download)

    def load(self, image_set: ImageSet, parts: Sequence[str]) -> Images:
        """The images of some parts, one after the other. Raises MissingDataError if a part is not there."""
        self.check(image_set, parts)
        read = [image_set.read(self.directory, part, download=self.download) for part in parts]
        return Images(np.concatenate([x for x, _ in read]), np.concatenate([y for _, y in read]))

    def check(self, image_set: ImageSet, parts: Sequence[str]) -> None:
        """Raises MissingDataError if files are missing that cannot be downloaded."""
        for part in parts:
            if not self.download and not image_set.files(self.directory, part):
                raise MissingDataError(
                    f"{image_set.title} ({part}) is not in directory={str(self.directory)!r}: put "
                    f"{image_set.name}_{part}.npz or the official files ({image_set.parts[part].files[0]}, …) there, "
                    "or set data.download=true.",
                    setting="directory",
                )
