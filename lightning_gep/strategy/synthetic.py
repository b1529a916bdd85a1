"""Public records for those who have none: random inputs with the spectrum of natural images."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_gep.arguments import finite_positive, positive_integer, whole_number


class PinkNoise(Dataset[Any]):
    """Random inputs whose amplitude falls with the spatial frequency f as 1/f, as in natural images.

    Nothing in them comes from any data, so they are public whatever the training data is. Inputs without height and
    width, such as feature vectors, are white noise. Each has mean 0 and standard deviation `scale`. Label them with
    `RandomLabels`. Real public images give a better subspace; use these where there are none.

    Args:
        shape: The shape of an input without the batch dimension, e.g. (3, 32, 32).
        count: The number of inputs. Default 2000. They are computed when they are read.
        scale: The standard deviation of an input's values. Default 0.5, which fits pixels in [−1, 1].
        seed: Other seeds give other inputs. Default 0.

    Raises:
        ConfigurationError: If a size is not a positive integer, `scale` is not positive or `seed` is negative.

    Example:
        >>> from lightning_gep import PinkNoise, RandomLabels
        >>> public = RandomLabels(PinkNoise((3, 32, 32)), num_classes=10)
        >>> image, label = public[0]

    """

    def __init__(self, shape: Sequence[int], count: int = 2000, scale: float = 0.5, seed: int = 0) -> None:
        for side in shape:
            positive_integer("shape", side, "It is the shape of one input, e.g. (3, 32, 32).")
        self.shape = tuple(shape)
        self.count = positive_integer("count", count, "It is the number of public records, e.g. 2000.")
        self.scale = finite_positive("scale", scale, "It is the standard deviation of the values, e.g. 0.5.")
        self.seed = whole_number("seed", seed)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < self.count:
            raise IndexError(f"PinkNoise has {self.count} records, none at {index}.")
        values = torch.from_numpy(np.random.default_rng([self.seed, index]).standard_normal(self.shape)).float()
        if len(self.shape) > 1:
            values = torch.fft.ifft2(torch.fft.fft2(values) / _frequencies(*self.shape[-2:])).real
        values = values - values.mean()
        return values * (self.scale * math.sqrt(values.numel()) / values.norm().clamp(min=1e-12))


def _frequencies(height: int, width: int) -> Tensor:
    """Spatial frequencies in cycles per pixel; the constant part counts as the lowest of the others."""
    squares = torch.fft.fftfreq(height)[:, None].square() + torch.fft.fftfreq(width).square()
    return squares.sqrt().clamp(min=1 / max(height, width))
