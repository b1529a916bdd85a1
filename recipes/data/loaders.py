"""The loaders of the data modules here: alike, but for what they read."""

from typing import Any

from torch.utils.data import DataLoader, Dataset


def make_loader(dataset: Dataset[Any], batch_size: int, num_workers: int, *, shuffle: bool = False) -> DataLoader[Any]:
    """A loader whose workers, if there are any, live as long as it does."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
