"""Public records without useful labels, labelled at random so that the loss has something to differentiate."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError


class RandomLabels(Dataset[Any]):
    """A dataset whose labels are drawn again, uniformly from 0 … num_classes − 1, at every read.

    Labels come from torch's global generator: two reads of an item have unrelated labels, and so have the workers of a
    DataLoader. Labels are public, so a seeded run may repeat them; sampling and noise never use this generator.

    Args:
        dataset: A dataset with a length. Its items are an input x, which becomes (x, label), or a tuple or list
            (x, y, …), whose y is replaced.
        num_classes: The number of classes that the model distinguishes.

    Raises:
        ConfigurationError: If `num_classes` is not a positive integer, if the dataset has no length, or, at a read, if
            an item is a dictionary.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from lightning_gep import RandomLabels
        >>> public = RandomLabels(TensorDataset(torch.zeros(100, 3)), num_classes=10)
        >>> image, label = public[0]

    """

    def __init__(self, dataset: Dataset[Any], num_classes: int) -> None:
        positive_integer("num_classes", num_classes, "It is the number of classes the model distinguishes, e.g. 10.")
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ConfigurationError(
                f"RandomLabels needs a dataset with __len__ and __getitem__, but {type(dataset).__name__} has none. "
                "Read its records into a list first."
            )
        self.dataset, self.num_classes = dataset, num_classes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return _relabelled(self.dataset[index], int(torch.randint(self.num_classes, ())))

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Several items in one call, as a DataLoader requests them: fast if `dataset` has this method, too."""
        several = getattr(self.dataset, "__getitems__", None)
        items = several(indices) if several else [self.dataset[index] for index in indices]
        labels: list[int] = torch.randint(self.num_classes, (len(indices),)).tolist()
        return [_relabelled(item, label) for item, label in zip(items, labels, strict=True)]


def _relabelled(item: Any, label: int) -> Any:
    if isinstance(item, Mapping):
        raise ConfigurationError(
            f"RandomLabels does not know which entry of a dictionary ({', '.join(map(str, item))}) is the label. "
            "Wrap a dataset whose items are x or (x, y)."
        )
    if isinstance(item, list):
        return [*item[:1], label, *item[2:]]
    return (*item[:1], label, *item[2:]) if isinstance(item, tuple) else (item, label)
