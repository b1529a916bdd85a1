"""Reads files of images. Damaged or unexpected files raise ConfigurationError."""

import zipfile
import zlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_gep.errors import ConfigurationError, missing_extra

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
MODES = {1: "L", 3: "RGB"}
UNREADABLE = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error)

Shape = tuple[int, int, int]
"""Channels, height, width."""


class Images(NamedTuple):
    """Bytes N × channels × height × width, and a label for each if there are labels."""

    images: NDArray[Any]
    labels: NDArray[Any] | None


def optional(module: str, what: str) -> Any:
    """A module of the `data` extra. Raises ConfigurationError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra("data", what) from error


def read_images(path: Path) -> Images:
    """`images` (uint8, N × height × width × channels, or without channels) and perhaps `labels` of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in ("images", "labels") if name in content}
    except UNREADABLE as error:
        raise ConfigurationError(f"{path} cannot be read ({error}). It may be damaged: get it again.") from error
    if "images" not in arrays:
        raise ConfigurationError(f"{path} has no array 'images'. Save it with np.savez(path, images=..., labels=...).")
    images, labels = arrays["images"], arrays.get("labels")
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ConfigurationError(
            f"{path} has images of type {images.dtype} and shape {images.shape}. They must be bytes (uint8), "
            "N × height × width × channels."
        )
    if labels is not None and (labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer)):
        raise ConfigurationError(
            f"{path} has labels of type {labels.dtype} and shape {labels.shape} for {len(images)} records. There "
            "must be one integer for each."
        )
    return Images((images if images.ndim == 4 else images[..., None]).transpose(0, 3, 1, 2), labels)


def list_pictures(directory: Path) -> list[Path]:
    """All picture files in a folder and below, in the same order on every machine."""
    return sorted(path for path in directory.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def fitted(pictures: Sequence[Path] | NDArray[Any], shape: Shape) -> NDArray[Any]:
    """Picture files, or bytes N × C × H × W, in one shape: cropped to its proportions, then resized with smoothing."""
    if isinstance(pictures, np.ndarray):
        if pictures.shape[1:] == shape:
            return pictures
        if pictures.shape[1] not in MODES:
            raise ConfigurationError(f"Public images must have 1 or 3 channels, but these have {pictures.shape[1]}.")
    return np.stack([_fitted(picture, shape) for picture in pictures])


def _fitted(picture: Path | NDArray[Any], shape: Shape) -> NDArray[Any]:
    pillow, ops = (optional(f"PIL.{name}", "Resizing public images") for name in ("Image", "ImageOps"))
    channels, height, width = shape
    try:
        if isinstance(picture, Path):
            opened = pillow.open(picture)
        else:
            opened = pillow.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)).squeeze())
        # Converted first: resizing the indices of a palette would mix up colours.
        small = ops.fit(opened.convert(MODES[channels]), (width, height), pillow.Resampling.BILINEAR)
    except OSError as error:
        raise ConfigurationError(f"{picture} cannot be read as an image ({error}). Remove or replace it.") from error
    pixels = np.asarray(small)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
