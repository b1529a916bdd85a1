"""MNIST's own format: a header with the shape in big-endian numbers, then bytes; often compressed by gzip."""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipes.data.formats.source import Images, Source, first_existing

PREFIXES = {"train": "train", "test": "t10k"}
BYTES = 0x08
"""The type code of unsigned bytes, the third byte of the file; the fourth is the number of dimensions."""


def find(directory: Path, part: str) -> Source | None:
    """Images and labels of a part, in the directory itself or where torchvision keeps them."""
    for place in (directory, directory / "MNIST" / "raw"):
        names = (f"{PREFIXES[part]}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
        files = [first_existing(place / name, place / f"{name}.gz") for name in names]
        if None not in files:
            return Source(tuple(path for path in files if path is not None), read)
    return None


def read(files: tuple[Path, ...]) -> Images:
    """The content of both files."""
    images, labels = (read_idx(path) for path in files)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(f"images of shape {images.shape} do not go with labels of shape {labels.shape}")
    return Images(images[:, None], labels)


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an idx file."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:3] != bytes([0, 0, BYTES]):
        raise ValueError(f"{path.name} does not begin as an idx file of bytes does")
    header = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:header], ">u4"))
    if len(content) != header + math.prod(shape):
        raise ValueError(f"{path.name} has {len(content) - header} bytes for the shape {shape}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
