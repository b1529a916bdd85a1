"""Pictures of any size and colour, one file each, brought to one shape."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from lightning_gep.errors import ConfigurationError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
MODES = {1: "L", 3: "RGB"}

Shape = tuple[int, int, int]
"""Channels, height, width."""


def list_images(directory: Path) -> list[Path]:
    """All image files in a folder and in the folders below it, in the same order on every machine."""
    return sorted(path for path in directory.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def read_images(files: Iterable[Path], shape: Shape) -> NDArray[Any]:
    """The pictures as bytes N × channels × height × width."""
    return np.stack([_read(path, shape) for path in files])


def fit_images(images: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """Bytes N × channels × height × width in another shape; the same array if they have it already."""
    if images.shape[1:] == shape:
        return images
    if images.shape[1] not in MODES:
        raise ConfigurationError(
            f"The public images have {images.shape[1]} channels. They must be grey (1) or red, green and blue (3), "
            "N × height × width × channels."
        )
    pictures = (image[0] if len(image) == 1 else image.transpose(1, 2, 0) for image in images)
    return np.stack([fit_image(Image.fromarray(np.ascontiguousarray(picture)), shape) for picture in pictures])


def fit_image(picture: Image.Image, shape: Shape) -> NDArray[Any]:
    """The middle of a picture that has the right proportions, resized with smoothing, in colour or grey."""
    channels, height, width = shape
    # Converted first: resizing the indices of a palette would mix up colours.
    fitted = ImageOps.fit(picture.convert(MODES[channels]), (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(fitted)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _read(path: Path, shape: Shape) -> NDArray[Any]:
    try:
        with Image.open(path) as picture:
            return fit_image(picture, shape)
    except (OSError, UnidentifiedImageError) as error:
        raise ConfigurationError(f"{path} cannot be read as an image ({error}). Remove or replace it.") from error
