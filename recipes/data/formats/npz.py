"""Images in an .npz file of one's own: `images`, bytes N × height × width (× channels), and perhaps `labels`."""

from pathlib import Path

import numpy as np

from lightning_gep.errors import ConfigurationError
from recipes.data.formats.source import Images, Source


def find(path: Path) -> Source | None:
    """The file, if it is there."""
    return Source((path,), read) if path.is_file() else None


def read(files: tuple[Path, ...]) -> Images:
    """The arrays of the file, checked."""
    (path,) = files
    with np.load(path, allow_pickle=False) as content:
        if "images" not in content:
            raise ConfigurationError(
                f"{path} has no array 'images' (it has {', '.join(content) or 'none'}). Save it with "
                "np.savez(path, images=..., labels=...)."
            )
        images, labels = content["images"], content.get("labels")
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ConfigurationError(
            f"{path} has images of type {images.dtype} and shape {images.shape}. They must be bytes (uint8), "
            "N × height × width × channels."
        )
    if labels is not None and labels.shape != images.shape[:1]:
        raise ConfigurationError(
            f"{path} has labels of shape {labels.shape} for {len(images)} images. There must be one label for each."
        )
    return Images((images if images.ndim == 4 else images[..., None]).transpose(0, 3, 1, 2), labels)
