"""Features of one's own in an .npz file: `features`, numbers N × length, and perhaps `labels`."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_gep.errors import ConfigurationError
from recipes.data.formats.source import UNREADABLE


def read_features(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the file, checked; without "labels" if there are none."""
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {key: content[key] for key in ("features", "labels") if key in content}
    except UNREADABLE as error:
        raise ConfigurationError(f"{path} cannot be read ({error}). Save it again with np.savez.") from error
    features, labels = arrays.get("features"), arrays.get("labels")
    if features is None or features.ndim != 2 or not np.issubdtype(features.dtype, np.floating):
        found = "none" if features is None else f"{features.dtype} of shape {features.shape}"
        raise ConfigurationError(
            f"{path} must have an array 'features' of floating-point numbers, N × length. It has {found}."
        )
    if not np.isfinite(features).all():
        raise ConfigurationError(
            f"{path} has features that are not finite. Remove those records, or compute them once more."
        )
    if labels is not None and (labels.shape != features.shape[:1] or not np.issubdtype(labels.dtype, np.integer)):
        raise ConfigurationError(
            f"{path} has labels of type {labels.dtype} and shape {labels.shape} for {len(features)} feature vectors. "
            "There must be one whole number for each."
        )
    return {key: array.astype(np.float32 if key == "features" else np.int64) for key, array in arrays.items()}
