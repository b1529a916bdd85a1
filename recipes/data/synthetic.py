"""Public images for data that has none."""

from torch.utils.data import Dataset

from lightning_gep.strategy.synthetic import PinkNoise
from recipes.data.files import Shape
from recipes.data.public import PublicImages


class Synthetic(PublicImages):
    """`count` images of pink noise in the shape of the private ones. They have no labels."""

    name = "synthetic"

    def __init__(self, count: int = 2000, seed: int = 0) -> None:
        self.count, self.seed = count, seed

    def records(self, shape: Shape) -> Dataset[object]:
        """The images."""
        assert self.count is not None
        return PinkNoise(shape, self.count, seed=self.seed)
