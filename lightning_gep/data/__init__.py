"""Data for private training: what is trained on, and the public records the basis comes from."""

from lightning_gep.data.random_labels import RandomLabels

__all__ = ["RandomLabels"]
