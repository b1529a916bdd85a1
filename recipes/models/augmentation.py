"""Random copies of images, made inside a training step."""

import torch
from torch import Tensor, nn

LARGEST_SHIFT = 4
"""Pixels, as is usual for images of 32 × 32."""


def random_copies(images: Tensor, copies: int) -> Tensor:
    """`copies` of every image (n·copies × …), each shifted by a few pixels and mirrored at random; zeros fill the edge.

    With the mean loss over all copies, a record's gradient is the mean over its own copies: still one contribution,
    clipped once, however many copies there are (augmentation multiplicity, De et al. 2022).
    """
    images = nn.functional.pad(images.repeat_interleave(copies, dim=0), [LARGEST_SHIFT] * 4)
    count, channels, height, width = images.shape

    def window(length: int) -> Tensor:
        start = torch.randint(2 * LARGEST_SHIFT + 1, (count, 1), device=images.device)
        return start + torch.arange(length - 2 * LARGEST_SHIFT, device=images.device)

    rows, columns = window(height), window(width)
    images = images.gather(2, rows[:, None, :, None].expand(count, channels, -1, width))
    images = images.gather(3, columns[:, None, None, :].expand(count, channels, images.shape[2], -1))
    mirrored = torch.rand(count, 1, 1, 1, device=images.device) < 0.5
    return torch.where(mirrored, images.flip(3), images)
