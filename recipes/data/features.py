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
from torch.utils.data import Dataset, Subset

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError, MissingDataError
from recipes.data.cache import Arrays, cached, checksum, identities
from recipes.data.files import read_features
from recipes.data.images import ImageDataModule
from recipes.data.public import PublicImages, labelled, labels_of
from recipes.data.records import FeatureRecords, image_bytes

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

    Features come from `<name>_features_train.npz` and `<name>_features_test.npz` in the directory, and those of public
    images from `<aux>_features.npz`. Without these files `network` computes them from the images, once. It must be a
    public network: one trained on the private records would release them.
    """

    def __init__(self, name: str, network: FeatureNetwork, num_features: int = 1280, **images: Any) -> None:
        super().__init__(name, **images)
        self.network = network
        self.num_features = positive_integer("num_features", num_features, "It is the length of a feature vector.")

    def check_files(self) -> None:
        """Raises MissingDataError if there are neither features nor images."""
        if not self._given():
            super().check_files()

    def load(self) -> tuple[FeatureRecords, FeatureRecords]:
        """Features of all records for training and validation, and of all test records."""
        if not self._given():
            return self._compute(self.train_parts), self._compute(("test",))
        train, test = (self._read(path) for path in self._files())
        for records, path in zip((train, test), self._files(), strict=True):
            self._check_labels(records, path)
        return train, test

    def load_public(self, aux: PublicImages | Dataset[Any]) -> Dataset[Any]:
        """Features of public images, by the same network as the private ones."""
        if not isinstance(aux, PublicImages):
            raise ConfigurationError(
                f"aux={type(aux).__name__} cannot be turned into features. Use e.g. aux=test_samples or aux=imagenet."
            )
        if self._given():
            given = self._read(self.store.directory / f"{aux.name}_features.npz")
            records: Dataset[Any] = Subset(given, aux.drawn(len(given)))
        else:
            public = aux.records(self.image_set.shape)
            images = image_bytes(public)
            features = extract_features(images, f"{aux.name}-{len(images)}", self.network, self.store.cache)
            records = self._records(features, labels_of(public))
        return labelled(records, aux.labels, self.image_set.num_classes)

    def _files(self) -> list[Path]:
        return [self.store.directory / f"{self.image_set.name}_features_{part}.npz" for part in ("train", "test")]

    def _given(self) -> bool:
        there = [path for path in self._files() if path.is_file()]
        if len(there) == 1:
            missing = next(path for path in self._files() if path not in there)
            raise ConfigurationError(
                f"{there[0]} is there, but {missing.name} is not. Put both there, or none to have features computed."
            )
        return bool(there)

    def _read(self, path: Path) -> FeatureRecords:
        if not path.is_file():
            raise MissingDataError(
                f"The private features were given as files, so the public ones must be too: put {path.name}, with an "
                f"array 'features', into directory={str(path.parent)!r}, or use aux=test_samples."
            )
        arrays = cached(self.store.cache, path.stem, identities([path]), lambda: read_features(path))
        return self._records(arrays["features"], arrays.get("labels"))

    def _check_labels(self, records: FeatureRecords, path: Path) -> None:
        classes = self.image_set.num_classes
        if records.labels is None or not all(0 <= label < classes for label in records.labels):
            raise ConfigurationError(f"{path} must have an array 'labels' with integers from 0 to {classes - 1}.")

    def _compute(self, parts: Sequence[str]) -> FeatureRecords:
        images, labels = self.store.load(self.image_set, parts)
        name = f"{self.image_set.name}-{'+'.join(parts)}"
        return self._records(extract_features(images, name, self.network, self.store.cache), labels)

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
