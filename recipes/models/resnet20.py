"""ResNet20 for images of 32 × 32 pixels (He et al. 2016), with GroupNorm in place of BatchNorm."""

import math
from itertools import pairwise

from torch import Tensor, nn

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError
from recipes.models.inputs import check_inputs

WIDTHS = (16, 32, 64)
BLOCKS_A_STAGE = 3


class ResNet20(nn.Module):
    """Twenty layers in an input layer, three stages and an output layer; 268 346 parameters for ten classes.

    Its five children are the paper's five parameter groups. GroupNorm, without weights of its own, normalises each
    image by itself; BatchNorm would mix the records of a batch. Behind it the size of a weight divides its gradient,
    so the initial scale of the convolutions, He's, decides whether a learning rate of 0.1 can work: with PyTorch's
    default the loss stays at chance.
    """

    def __init__(self, num_classes: int = 10, channels: int = 3, norm_groups: int = 4) -> None:
        super().__init__()
        positive_integer("num_classes", num_classes, "It is the number of classes, e.g. 10.")
        positive_integer("channels", channels, "It is the number of colours of an image, e.g. 3.")
        positive_integer(
            "norm_groups", norm_groups, "It is the number of groups of channels that are normalised, e.g. 4."
        )
        first, second, third = WIDTHS
        if first % norm_groups:
            raise ConfigurationError(
                f"norm_groups={norm_groups} does not divide the {first} channels of the first stage. Use e.g. 4.",
                setting="norm_groups",
            )
        self.channels = channels
        self.input = nn.Sequential(_convolution(channels, first), _norm(norm_groups, first), nn.ReLU())
        self.stage1 = _stage(first, first, norm_groups)
        self.stage2 = _stage(first, second, norm_groups)
        self.stage3 = _stage(second, third, norm_groups)
        self.output = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(third, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n × classes) for images (n × channels × size × size)."""
        check_inputs(self, images, (self.channels, None, None))
        logits: Tensor = self.output(self.stage3(self.stage2(self.stage1(self.input(images)))))
        return logits


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, norm_groups: int) -> None:
        super().__init__()
        self.stride = channels_out // channels_in
        self.convolution1 = _convolution(channels_in, channels_out, self.stride)
        self.norm1 = _norm(norm_groups, channels_out)
        self.convolution2 = _convolution(channels_out, channels_out)
        self.norm2 = _norm(norm_groups, channels_out)
        self.shortcut = nn.Identity() if self.stride == 1 else NarrowShortcut(channels_in, channels_out, norm_groups)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of half the size where its width doubles."""
        inner = nn.functional.relu(self.norm1(self.convolution1(x)))
        return nn.functional.relu(self.norm2(self.convolution2(inner)) + self.shortcut(x))


class NarrowShortcut(nn.Module):
    """The way around a block that doubles the width: every second pixel, normalised, then channels of zeros."""

    def __init__(self, channels_in: int, channels_out: int, norm_groups: int) -> None:
        super().__init__()
        self.new_channels = channels_out - channels_in
        self.norm = _norm(norm_groups, channels_in)

    def forward(self, x: Tensor) -> Tensor:
        """The input at half its size and twice its width."""
        return nn.functional.pad(self.norm(x[:, :, ::2, ::2]), (0, 0, 0, 0, 0, self.new_channels))


def _stage(channels_in: int, channels_out: int, norm_groups: int) -> nn.Sequential:
    widths = [channels_in] + [channels_out] * BLOCKS_A_STAGE
    return nn.Sequential(*(Block(a, b, norm_groups) for a, b in pairwise(widths)))


def _norm(norm_groups: int, channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(norm_groups, channels, affine=False)


def _convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1, bias=False)
    nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * channels_out)))
    return convolution
