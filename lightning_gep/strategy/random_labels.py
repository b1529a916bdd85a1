"""Public records without useful labels, labelled at random so that the loss has something to differentiate."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError


class RandomLabels(Dataset[Any]):
    """`dataset` with a label drawn afresh, uniformly from 0 … num_classes − 1, at every read.

    Items of `dataset` are an input x, which becomes (x, label), or a tuple or list (x, y, …), whose y is replaced and
    whose other entries stay. Labels come from torch's global generator: two reads of one item have unrelated labels,
    and so have the workers of a DataLoader, which seeds each of them differently at every pass.

    Labels are public, so a run that is seeded may repeat them; sampling and noise never come from this generator.
    """

    def __init__(self, dataset: Dataset[Any], num_classes: int) -> None:
        positive_integer("num_classes", num_classes, "It is the number of classes the model tells apart, e.g. 10.")
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ConfigurationError(
                f"RandomLabels needs a dataset with a length and items by index, but {type(dataset).__name__} is not "
                "one. Read its records into a list first."
            )
        self.dataset, self.num_classes = dataset, num_classes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return _relabelled(self.dataset[index], int(torch.randint(self.num_classes, ())))

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Several at once, as a DataLoader asks for them: fast if `dataset` is."""
        several = getattr(self.dataset, "__getitems__", None)
        items = several(indices) if several else [self.dataset[index] for index in indices]
        labels: list[int] = torch.randint(self.num_classes, (len(indices),)).tolist()
        return [_relabelled(item, label) for item, label in zip(items, labels, strict=True)]


def _relabelled(item: Any, label: int) -> Any:
    if isinstance(item, Mapping):
        raise ConfigurationError(
            f"RandomLabels cannot tell which entry of a dictionary ({', '.join(map(str, item))}) is the label. "
            "Wrap a dataset whose items are x or (x, y)."
        )
    if isinstance(item, list):
        return [*item[:1], label, *item[2:]]
    return (*item[:1], label, *item[2:]) if isinstance(item, tuple) else (item, label)
