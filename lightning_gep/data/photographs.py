"""Public images on every machine: patches of the two photographs that ship with scikit-learn."""

import torch
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_gep.checks import positive_integer

SIDES = (16, 32, 64)
"""Patch sizes in the photograph: structure of several scales, from twigs to roofs."""
LEAST_CONTRAST = 0.1
"""Below it a patch is plain sky, and stretching its grey values would show compression noise."""


class PhotographPatches(Dataset[Tensor]):
    """Grey images 1 × size × size with values in [−1, 1], cut from photographs of a Chinese temple and of a flower.

    The photographs are public and show no training record. Each patch is stretched to the full range of values, which
    handwriting has too. The patches are the same on every machine and in every run.
    """

    def __init__(self, size: int = 8) -> None:
        positive_integer("size", size, "It is the side of the images in pixels, e.g. 8.")
        photographs = [torch.tensor(image).float().mean(dim=2) / 255 for image in load_sample_images().images]
        self.images = torch.cat([_patches(photo, side, size) for photo in photographs for side in SIDES])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


def _patches(photograph: Tensor, side: int, size: int) -> Tensor:
    """Half-overlapping squares of the photograph, shrunk and stretched, without the plain ones."""
    windows = photograph.unfold(0, side, side // 2).unfold(1, side, side // 2).reshape(-1, 1, side, side)
    small = nn.functional.adaptive_avg_pool2d(windows, size)
    low, high = small.amin(dim=(2, 3), keepdim=True), small.amax(dim=(2, 3), keepdim=True)
    contrast = high - low
    kept = contrast.flatten() >= LEAST_CONTRAST
    return (2 * (small - low) / contrast - 1)[kept]
