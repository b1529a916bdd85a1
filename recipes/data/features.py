"""Features of a pre-trained network in place of the images, to train one linear layer on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, Subset

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError
from recipes.data.feature_extraction import FeatureNetwork, extract_features
from recipes.data.formats.feature_file import read_features
from recipes.data.images import ImageDataModule
from recipes.data.public import PublicImages, labelled, labels_of
from recipes.data.records import FeatureRecords, image_bytes


class FeaturesDataModule(ImageDataModule):
    """An ImageDataModule (`images` are its settings) whose records are features, each scaled to length 1 by itself.

    If `<name>_features_train.npz` and `<name>_features_test.npz` are in the directory, those are the features, and
    `<aux>_features.npz` are those of public images. Otherwise `network` computes them from the images, once. It has to
    be a public network, which was not trained on the private records.
    """

    def __init__(self, name: str, network: FeatureNetwork, num_features: int = 1280, **images: Any) -> None:
        super().__init__(name, **images)
        self.network = network
        self.num_features = positive_integer("num_features", num_features, "It is the length of a feature vector.")

    def load(self) -> tuple[FeatureRecords, FeatureRecords]:
        """Features of all records for training and validation, and of all for testing."""
        if not self._given():
            return self._compute(self.train_parts), self._compute(("test",))
        train, test = (self._read(path) for path in self._files())
        for records, path in zip((train, test), self._files(), strict=True):
            self._check_labels(records, path)
        return train, test

    def load_public(self, aux: PublicImages | Dataset[Any]) -> Dataset[Any]:
        """Features of public images, by the network that the private ones come from."""
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
            raise ConfigurationError(
                f"The private features were given as files, so the public ones must be too: put {path.name}, with an "
                f"array 'features', into directory={str(path.parent)!r}, or use aux=test_samples."
            )
        recipe = {"features": "N × length"}
        arrays = self.store.cache.get(path.stem, recipe, [path], lambda: (read_features(path), [path]))
        return self._records(arrays["features"], arrays.get("labels"))

    def _check_labels(self, records: FeatureRecords, path: Path) -> None:
        classes = self.image_set.num_classes
        if records.labels is None or not all(0 <= label < classes for label in records.labels):
            raise ConfigurationError(f"{path} must have an array 'labels' with numbers from 0 to {classes - 1}.")

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
