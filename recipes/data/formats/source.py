"""What every reader gives: files that were found, and the images in them."""

import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from lightning_gep.errors import ConfigurationError

UNREADABLE = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, AttributeError),
    *(pickle.UnpicklingError, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error),
)
"""What reading a file raises that is cut short, or is something else than its name says."""


class Images(NamedTuple):
    """Bytes N × channels × height × width, and a label for each, if there are labels."""

    images: NDArray[Any]
    labels: NDArray[Any] | None


@dataclass(frozen=True)
class Source:
    """Files of one part of a data set, and how to read them."""

    files: tuple[Path, ...]
    reader: Callable[[tuple[Path, ...]], Images]

    def read(self) -> Images:
        """The images. Raises ConfigurationError if the files are not what their names say."""
        try:
            return self.reader(self.files)
        except ConfigurationError:
            raise
        except UNREADABLE as error:
            names = ", ".join(str(path) for path in self.files)
            raise ConfigurationError(
                f"{names} cannot be read ({type(error).__name__}: {error}). It may be cut short: get it again."
            ) from error


def first_existing(*candidates: Path) -> Path | None:
    """The first of several files that is there."""
    return next((path for path in candidates if path.is_file()), None)
