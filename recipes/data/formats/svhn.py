"""SVHN's cropped digits ("format 2"): MATLAB files with the images in the last dimension, and the digit 0 called 10."""

from pathlib import Path

import numpy as np

from recipes.data.formats.source import Images, Source


def find(directory: Path, part: str) -> Source | None:
    """`train_32x32.mat`, `test_32x32.mat` or `extra_32x32.mat`."""
    path = directory / f"{part}_32x32.mat"
    return Source((path,), read) if path.is_file() else None


def read(files: tuple[Path, ...]) -> Images:
    """Images and digits, in the order of the file."""
    from scipy.io import loadmat  # half a second that other data sets need not spend
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(files[0], variable_names=["X", "y"])
    except MatReadError as error:
        raise ValueError(str(error)) from error
    return Images(content["X"].transpose(3, 2, 0, 1), content["y"].astype(np.int64).reshape(-1) % 10)
