"""Records in arrays, read a batch at a time: compact on disk and in memory, floating point only when read."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

MIDDLE_PIXEL = 127.5


class ArrayRecords(Dataset[Any], ABC):
    """Items (input, label), or the input alone where there are no labels.

    `__getitems__`, which a DataLoader calls with a whole batch, converts all inputs at once: a few milliseconds for
    thousands of images. Memory-mapped arrays are shared between the processes of a machine.
    """

    def __init__(self, inputs: NDArray[Any], labels: NDArray[Any] | Sequence[int] | None) -> None:
        self.inputs = np.asarray(inputs)  # a plain view: slicing a np.memmap is several times slower
        self.labels: list[int] | None = None if labels is None else np.asarray(labels).tolist()

    @abstractmethod
    def converted(self, inputs: NDArray[Any]) -> Tensor:
        """Inputs as the model takes them. Each depends on its own record alone."""

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        x = self.converted(self.inputs[index][None])[0]
        return x if self.labels is None else (x, self.labels[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        inputs = self.converted(self.inputs[np.asarray(indices)]).unbind()
        if self.labels is None:
            return list(inputs)
        return [(x, self.labels[index]) for x, index in zip(inputs, indices, strict=True)]


class ImageRecords(ArrayRecords):
    """Images C × H × W in [−1, 1], from bytes. The scale is that of the format, so no private record is read."""

    def converted(self, inputs: NDArray[Any]) -> Tensor:
        """Bytes to [−1, 1], both ends exactly."""
        return torch.tensor(inputs, dtype=torch.float32).sub_(MIDDLE_PIXEL).div_(MIDDLE_PIXEL)


class FeatureRecords(ArrayRecords):
    """Feature vectors, each divided by its own norm: a record's scale depends on that record alone."""

    def converted(self, inputs: NDArray[Any]) -> Tensor:
        """Vectors of norm 1; a zero vector stays zero."""
        return nn.functional.normalize(torch.tensor(inputs, dtype=torch.float32), dim=1)


def image_bytes(images: Dataset[Any]) -> NDArray[Any]:
    """The images of a data set without labels, or of ImageRecords, as bytes N × C × H × W."""
    if isinstance(images, ImageRecords):
        return images.inputs
    pixels = torch.stack([images[i] for i in range(len(images))])  # type: ignore[arg-type]
    return pixels.add(1).mul(MIDDLE_PIXEL).round().clamp(0, 255).to(torch.uint8).numpy()


def drawn_rows(count: int, size: int, seed: int) -> list[int]:
    """`size` of `count` rows in order, drawn by the seed alone. A smaller draw is part of a larger one."""
    return sorted(np.random.default_rng(seed).permutation(count)[:size].tolist())


def other_rows(count: int, taken: list[int]) -> list[int]:
    """The rows that were not taken, in order."""
    without = set(taken)
    return [row for row in range(count) if row not in without]


def make_loader(dataset: Dataset[Any], batch_size: int, num_workers: int, *, shuffle: bool = False) -> DataLoader[Any]:
    """A loader whose workers, if any, live as long as it does."""
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=shuffle, num_workers=num_workers, persistent_workers=num_workers > 0
    )
