"""Features of a pre-trained network in place of the images, to train one linear layer on."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch.utils.data import Dataset

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError
from recipes.data.cache import Arrays, cached, checksum
from recipes.data.images import ImageDataModule
from recipes.data.public import PublicImages, labelled, labels_of
from recipes.data.records import FeatureRecords, image_bytes
from recipes.data.store import path_setting

IMAGES_PER_CHUNK = 500


class FeatureNetwork(Protocol):
    """A fixed network: features depend on the image and on what `name` says, and on nothing else."""

    num_features: int

    @property
    def name(self) -> str:
        """Tells these features from those of another network or setting."""

    def __call__(self, images: NDArray[Any]) -> NDArray[Any]:
        """Features N × length of images N × channels × height × width in bytes."""


class FeaturesDataModule(ImageDataModule):
    """An ImageDataModule (`images` are its settings) whose records are features, each scaled to norm 1 by itself.

    `network` computes them from the images, once: they are kept in `cache_directory`, by default cache in `directory`.
    It must be a public network: one trained on the private records would release them.
    """

    def __init__(
        self,
        name: str,
        network: FeatureNetwork,
        num_features: int = 1280,
        directory: str = "data",
        cache_directory: str | None = None,
        **images: Any,
    ) -> None:
        super().__init__(name, directory, **images)
        self.network = network
        self.num_features = positive_integer("num_features", num_features, "It is the length of a feature vector.")
        self.cache = path_setting("cache_directory", cache_directory or str(self.store.directory / "cache"))

    def load(self) -> tuple[FeatureRecords, FeatureRecords]:
        """Features of all records for training and validation, and of all test records."""
        return self._compute(self.train_parts), self._compute(("test",))

    def load_public(self, aux: PublicImages | Dataset[Any]) -> Dataset[Any]:
        """Features of public images, by the same network as the private ones."""
        if not isinstance(aux, PublicImages):
            raise ConfigurationError(
                f"aux={type(aux).__name__} cannot be turned into features. Use e.g. aux=test_samples or aux=imagenet."
            )
        public = aux.records(self.image_set.shape)
        images = image_bytes(public)
        features = extract_features(images, f"{aux.name}-{len(images)}", self.network, self.cache)
        return labelled(self._records(features, labels_of(public)), aux.labels, self.image_set.num_classes)

    def _compute(self, parts: Sequence[str]) -> FeatureRecords:
        images, labels = self.store.load(self.image_set, parts)
        name = f"{self.image_set.name}-{'+'.join(parts)}"
        return self._records(extract_features(images, name, self.network, self.cache), labels)

    def _records(self, features: Any, labels: Any) -> FeatureRecords:
        if features.shape[1] != self.num_features:
            raise ConfigurationError(
                f"num_features={self.num_features}, but the feature vectors have {features.shape[1]} entries. "
                f"Set data.num_features={features.shape[1]}; the model follows.",
                setting="num_features",
            )
        return FeatureRecords(features, labels)


def extract_features(images: NDArray[Any], of: str, network: FeatureNetwork, cache: Path) -> NDArray[Any]:
    """The features of the images called `of`, from the cache, or computed with a progress bar and cached.

    Finished chunks stay on disk until all are finished, so an interrupted computation continues.
    """
    content = checksum(images)
    name = re.sub(r"[^\w-]", "_", f"{of}-{network.name}")
    chunks = cache / f".{name}.{content:08x}.chunks"

    def chunk(start: int) -> NDArray[Any]:
        part = images[start : start + IMAGES_PER_CHUNK]
        make = lambda: {"features": network(part).astype(np.float32)}  # noqa: E731
        return cached(chunks, f"{start:08d}", len(part), make)["features"]

    def make() -> Arrays:
        # A console of its own: that of Lightning's progress bar may be in use, and shows one bar at a time.
        starts = track(range(0, len(images), IMAGES_PER_CHUNK), f"Features of {of}", console=Console(stderr=True))
        return {"features": np.concatenate([chunk(start) for start in starts])}

    features = cached(cache, name, {"network": network.name, "images": content}, make)["features"]
    shutil.rmtree(chunks, ignore_errors=True)
    return features
