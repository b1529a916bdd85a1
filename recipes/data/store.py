"""Where data files are looked for."""

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
    """A directory of files, and whether to download what is missing there."""

    directory: Path
    download: bool = False

    @classmethod
    def at(cls, directory: str, download: bool) -> "Store":
        """From settings."""
        return cls(path_setting("directory", directory), boolean("download", download))

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


def path_setting(name: str, value: str) -> Path:
    """A path from a setting. Raises ConfigurationError for what cannot be one."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} must be a path, but it is {value!r}. Use e.g. data.", setting=name)
    return Path(value).expanduser()
