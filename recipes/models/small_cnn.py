"""A small convolutional network for small grey images."""

from torch import Tensor, nn

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError
from recipes.models.inputs import check_inputs

NORM_GROUPS = 4


class SmallCNN(nn.Module):
    """Two convolutions with GroupNorm and max-pooling, one linear layer; 6186 parameters as it stands.

    GroupNorm normalises each image by itself. BatchNorm would mix the records of a batch.
    """

    def __init__(self, image_size: int = 8, channels: int = 16, num_classes: int = 10) -> None:
        super().__init__()
        positive_integer("num_classes", num_classes, "It is the number of classes, e.g. 10.")
        for name, value in {"image_size": image_size, "channels": channels}.items():
            if positive_integer(name, value, f"Use a multiple of {NORM_GROUPS}, e.g. 16.") % 4:
                raise ConfigurationError(
                    f"{name}={value} cannot be divided by 4, as pooling and GroupNorm need it. Use e.g. 16."
                )
        self.image_size = image_size
        self.input = _block(1, channels)
        self.middle = _block(channels, 2 * channels)
        self.output = nn.Sequential(nn.Flatten(), nn.Linear(2 * channels * (image_size // 4) ** 2, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n × classes) for images (n × 1 × size × size)."""
        check_inputs(self, images, (1, self.image_size, self.image_size))
        logits: Tensor = self.output(self.middle(self.input(images)))
        return logits


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1),
        nn.GroupNorm(NORM_GROUPS, channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
