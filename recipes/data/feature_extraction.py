"""Features of many images, computed once, in pieces that outlive an interruption."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from recipes.data.cache import ArrayCache, Arrays, checksum

IMAGES_A_PIECE = 500


class FeatureNetwork(Protocol):
    """A fixed network: the features of an image depend on that image and on what `name` says, and on nothing else."""

    num_features: int

    @property
    def name(self) -> str:
        """What tells these features from those of another network or setting."""

    def __call__(self, images: NDArray[Any]) -> NDArray[Any]:
        """Features N × length of images N × channels × height × width in bytes."""


def extract_features(images: NDArray[Any], of: str, network: FeatureNetwork, cache: ArrayCache) -> NDArray[Any]:
    """The features of the images called `of`, from the cache, or computed with a progress bar and put there.

    Pieces that are finished stay on disk until all of them are: whoever interrupts this goes on later.
    """
    content = checksum(images)
    name = re.sub(r"[^\w-]", "_", f"{of}-{network.name}")
    pieces = cache.directory / f".{name}.{content:08x}.pieces"

    def make() -> tuple[Arrays, Sequence[Path]]:
        # A console of its own: that of Lightning's progress bar may be in use, and takes one bar at a time.
        starts = track(range(0, len(images), IMAGES_A_PIECE), f"Features of {of}", console=Console(stderr=True))
        parts = [_piece(i, images[i : i + IMAGES_A_PIECE], network, ArrayCache(pieces)) for i in starts]
        return {"features": np.concatenate(parts)}, []

    features = cache.get(name, {"network": network.name, "images": content}, None, make)["features"]
    shutil.rmtree(pieces, ignore_errors=True)
    return features


def _piece(begins: int, images: NDArray[Any], network: FeatureNetwork, pieces: ArrayCache) -> NDArray[Any]:
    """The features of some images, from disk if they are there and whole."""

    def make() -> tuple[Arrays, Sequence[Path]]:
        return {"features": network(images).astype(np.float32)}, []

    return pieces.get(f"{begins:08d}", {"images": len(images)}, None, make)["features"]
