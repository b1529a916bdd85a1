"""Records in arrays, read a batch at a time: compact on disk and in memory, floating point only when asked for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

MIDDLE_PIXEL = 127.5


class ArrayRecords(Dataset[Any], ABC):
    """Items (input, label), or the input alone where there are no labels.

    `__getitems__`, which a DataLoader asks for a whole batch, converts all of its inputs at once: a few milliseconds
    for thousands of images. The arrays may be memory-mapped; then they are shared with other processes on the machine.
    """

    def __init__(self, inputs: NDArray[Any], labels: NDArray[Any] | Sequence[int] | None) -> None:
        # A plain view: slicing a np.memmap costs several times as much.
        self.inputs = np.asarray(inputs)
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
    """Images C × H × W with values in [−1, 1], from bytes: the range of the format, so no private record is read."""

    def converted(self, inputs: NDArray[Any]) -> Tensor:
        """Bytes to [−1, 1], both ends exactly."""
        return torch.tensor(inputs, dtype=torch.float32).sub_(MIDDLE_PIXEL).div_(MIDDLE_PIXEL)


class FeatureRecords(ArrayRecords):
    """Feature vectors, each divided by its own length: what scales a record is that record alone."""

    def converted(self, inputs: NDArray[Any]) -> Tensor:
        """Vectors of length 1; a vector of zeros stays one."""
        return nn.functional.normalize(torch.tensor(inputs, dtype=torch.float32), dim=1)


def image_bytes(images: Dataset[Any]) -> NDArray[Any]:
    """The images of a data set without labels, or of ImageRecords, as bytes N × C × H × W."""
    if isinstance(images, ImageRecords):
        return images.inputs
    pixels = torch.stack([images[i] for i in range(len(images))])  # type: ignore[arg-type]
    return pixels.add(1).mul(MIDDLE_PIXEL).round().clamp(0, 255).to(torch.uint8).numpy()
