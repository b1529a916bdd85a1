"""Public images on every machine: patches of the two photographs that ship with scikit-learn."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from lightning_gep.arguments import positive_integer
from recipes.data.files import Shape, optional
from recipes.data.public import PublicImages

SIDES = (16, 32, 64)
"""Patch sizes in the photograph, for structure at several scales."""
LEAST_CONTRAST = 0.1
"""A patch below it is plain sky; stretching it would only show compression noise."""


class Photographs(PublicImages):
    """Patches of photographs in the shape of the private images: all of them, or `count`. They have no labels."""

    name = "photographs"

    def __init__(self, count: int | None = None) -> None:
        if count is not None:
            positive_integer("count", count, "It is the number of patches, e.g. 2000; null takes all.")
        self.count = count

    def records(self, shape: Shape) -> Dataset[Tensor]:
        """The patches."""
        channels, height, _ = shape
        patches = PhotographPatches(height, colour=channels == 3)
        return patches if self.count is None else Subset(patches, self.drawn(len(patches)))


class PhotographPatches(Dataset[Tensor]):
    """Images of size × size pixels with values in [−1, 1], cut from photographs of a Chinese temple and of a flower.

    They are grey (1 × size × size), or in `colour` (3 × size × size). The photographs are public and show no training
    record. Each patch is stretched to the full range of values, which handwriting has too. The patches are the same on
    every machine and in every run.
    """

    def __init__(self, size: int = 8, *, colour: bool = False) -> None:
        positive_integer("size", size, "It is the side of the images in pixels, e.g. 8.")
        samples = optional("sklearn.datasets", "Public photographs").load_sample_images()
        bytes_of = [torch.tensor(image).float() for image in samples.images]
        photographs = [(photo.permute(2, 0, 1) if colour else photo.mean(dim=2)[None]) / 255 for photo in bytes_of]
        self.images = torch.cat([_patches(photo, side, size) for photo in photographs for side in SIDES])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


def _patches(photograph: Tensor, side: int, size: int) -> Tensor:
    """Half-overlapping squares of the photograph, shrunk and stretched, without the plain ones."""
    windows = photograph.unfold(1, side, side // 2).unfold(2, side, side // 2)
    squares = windows.permute(1, 2, 0, 3, 4).reshape(-1, len(photograph), side, side)
    small = nn.functional.adaptive_avg_pool2d(squares, size)
    low, high = small.amin(dim=(1, 2, 3), keepdim=True), small.amax(dim=(1, 2, 3), keepdim=True)
    contrast = high - low
    kept = contrast.flatten() >= LEAST_CONTRAST
    return (2 * (small - low) / contrast - 1)[kept]
