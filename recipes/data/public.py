"""Public records beside private ones: in their shape, and with labels that the model can be asked for."""

from abc import ABC, abstractmethod
from typing import Any

from torch.utils.data import Dataset, Subset

from lightning_gep.arguments import one_of, positive_integer
from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy.random_labels import RandomLabels
from recipes.data.files import Shape
from recipes.data.records import drawn_rows


class PublicImages(ABC):
    """Public images in the shape of the private ones, with `labels` "random" or "true"."""

    name: str
    labels: str = "random"
    count: int | None = None
    """How many of them; None: all."""
    seed: int = 0

    @abstractmethod
    def records(self, shape: Shape) -> Dataset[Any]:
        """The images, with their own labels if they have any."""

    def check_files(self) -> None:  # noqa: B027 (nothing to check where there are no files)
        """Raises MissingDataError if its files are not there."""

    def drawn(self, available: int) -> list[int]:
        """`count` of the available rows, drawn by `seed`. Raises ConfigurationError if there are too few."""
        if available == 0:
            raise ConfigurationError(f"There is no image in the file of {self.name}. Get it again.")
        count = available if self.count is None else self.count
        if count > available:
            raise ConfigurationError(
                f"count={count} is above the {available} public images of {self.name}. Use at most {available}, or "
                "null for all.",
                setting="count",
            )
        return drawn_rows(available, count, self.seed)


class TestSamples:
    """`count` images of the private data's own test set, taken out of the evaluation.

    They are declared public, as in the paper, to see what public images of the same kind are worth. No setting decides
    which images they are, so the images left for the evaluation are always the same.
    """

    __test__ = False  # not a pytest class, despite its name
    name = "test_samples"

    def __init__(self, count: int = 2000, labels: str | bool = "random") -> None:
        self.count = positive_integer("count", count, "It is the number of test images to give up, e.g. 2000.")
        self.labels = label_choice(labels)


def label_choice(labels: str | bool) -> str:
    """The choice as a string: in YAML and on a command line, `true` is a boolean."""
    return one_of("labels", "true" if labels is True else labels, ("random", "true"))  # type: ignore[arg-type]


def public_dataset(aux: PublicImages | Dataset[Any], shape: Shape, num_classes: int) -> Dataset[Any]:
    """Items (image, label) from public images, or from a dataset of the user's own with fresh random labels."""
    if isinstance(aux, TestSamples):
        raise ConfigurationError(
            "aux=test_samples takes images from the test set of mnist, svhn or cifar10; this data set has none to "
            "spare. Use e.g. aux=photographs.",
            setting="aux",
        )
    if isinstance(aux, PublicImages):
        return labelled(aux.records(shape), aux.labels, num_classes)
    return RandomLabels(aux, num_classes)


def labelled(records: Dataset[Any], labels: str, num_classes: int) -> Dataset[Any]:
    """The records with labels drawn afresh at every read, or with their own."""
    if labels == "random":
        return RandomLabels(records, num_classes)
    own = labels_of(records)
    if own is None:
        raise ConfigurationError("aux.labels=true, but these public images have no labels. Use aux.labels=random.")
    if not 0 <= min(own) <= max(own) < num_classes:
        raise ConfigurationError(
            f"aux.labels=true, but the labels of these public images go from {min(own)} to {max(own)}, and the model "
            f"has {num_classes} classes. Use aux.labels=random."
        )
    return records


def labels_of(records: Any) -> list[int] | None:
    """The records' own labels."""
    if isinstance(records, Subset):
        own = labels_of(records.dataset)
        return None if own is None else [own[row] for row in records.indices]
    labels: list[int] | None = getattr(records, "labels", None)
    return labels
