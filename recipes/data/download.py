"""Downloads, by torchvision: its addresses and checksums are kept up to date there."""

from pathlib import Path
from typing import Any

from lightning_gep.errors import ConfigurationError


def torchvision_datasets() -> Any:
    """torchvision's data sets. Raises ConfigurationError where it is not installed."""
    try:
        from torchvision import datasets  # seconds that nobody else should wait for
    except ImportError as error:
        raise ConfigurationError(
            f"torchvision is needed for this, and cannot be imported ({error}). Use pip install "
            "'lightning-gep[torchvision]'."
        ) from error
    return datasets


def download(class_name: str, directory: Path, **arguments: Any) -> None:
    """Bring a data set of torchvision into the directory, in its official format."""
    make = getattr(torchvision_datasets(), class_name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        make(str(directory), download=True, **arguments)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"torchvision could not download {class_name} into {str(directory)!r} ({reason}). Check the network, or "
            "put the files there yourself (docs/data.md)."
        ) from error
