"""A clear error for inputs that do not fit a network."""

from torch import Tensor, nn

from lightning_gep.errors import ConfigurationError

FITTING = "model=small_cnn for digits, mnist_cnn for mnist, resnet20 for svhn and cifar10, linear_probe for features"


def check_inputs(network: nn.Module, inputs: Tensor, expected: tuple[int | None, ...]) -> None:
    """Raises ConfigurationError unless the inputs have that shape, after the first dimension; None is any size."""
    found = tuple(inputs.shape[1:])
    if len(found) != len(expected) or any(want not in (None, size) for want, size in zip(expected, found, strict=True)):
        raise ConfigurationError(
            f"{type(network).__name__} takes records of {_times(expected)}, but these have {_times(found)}. Choose a "
            f"model that fits the data: {FITTING}."
        )


def _times(shape: tuple[int | None, ...]) -> str:
    return " × ".join("any size" if size is None else str(size) for size in shape)
