"""A convolutional network for colour images of 32 × 32 pixels, small enough to train privately in minutes."""

import math

from torch import Tensor, nn

from lightning_gep.arguments import positive_integer
from recipes.models.inputs import check_inputs

CHANNELS = (16, 32, 64, 64)
NORM_GROUPS = 4


class CifarCNN(nn.Module):
    """Four convolutions with GroupNorm, three of them followed by max-pooling, and a linear layer; 61 162 parameters.

    As in `ResNet20`, GroupNorm has no weights of its own, and convolutions start at He's scale.
    """

    def __init__(self, num_classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        positive_integer("num_classes", num_classes, "It is the number of classes, e.g. 10.")
        self.channels = positive_integer("channels", channels, "It is the number of colours of an image, e.g. 3.")
        first, second, third, fourth = CHANNELS
        self.layer1 = _layer(channels, first)
        self.layer2 = nn.Sequential(nn.MaxPool2d(2), _layer(first, second))
        self.layer3 = nn.Sequential(nn.MaxPool2d(2), _layer(second, third))
        self.layer4 = nn.Sequential(nn.MaxPool2d(2), _layer(third, fourth))
        self.output = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fourth, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n × classes) for images (n × channels × size × size)."""
        check_inputs(self, images, (self.channels, None, None))
        logits: Tensor = self.output(self.layer4(self.layer3(self.layer2(self.layer1(images)))))
        return logits


def _layer(channels_in: int, channels_out: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1)
    nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * channels_in)))
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    return nn.Sequential(convolution, nn.GroupNorm(NORM_GROUPS, channels_out, affine=False), nn.ReLU())
