"""Real handwritten digits without a download: the data set inside scikit-learn, with public images beside it."""

from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_gep.arguments import positive_integer, whole_number
from lightning_gep.errors import ConfigurationError
from recipes.data.files import optional
from recipes.data.photographs import Photographs
from recipes.data.public import PublicImages, public_dataset
from recipes.data.records import make_loader

NUM_CLASSES = 10
SHAPE = (1, 8, 8)
NUM_TRAIN, NUM_VALIDATION, NUM_TEST = 1257, 180, 360
TEST_SPLIT_SEED = 0
LARGEST_PIXEL = 16


class DigitsDataModule(LightningDataModule):
    """1797 grey images of 8 × 8 pixels (UCI, Alpaydin and Kaynak 1998): 1257 to train, 180 to validate, 360 to test.

    `seed` draws the validation images; the test images are the same for every seed, so hyperparameters chosen on any
    validation set never saw them. Both draws are stratified by digit.

    `aux_dataloader` gives public images with random labels: those of `aux` (1 × 8 × 8, values in [−1, 1]), by default
    patches of photographs. Digits are scaled by the range of their format, which reads no private record.
    """

    num_classes = NUM_CLASSES

    def __init__(
        self,
        batch_size: int = 256,
        aux_batch_size: int = 50,
        num_workers: int = 0,
        seed: int = 0,
        aux: PublicImages | Dataset[Any] | None = None,
    ) -> None:
        super().__init__()
        positive_integer("batch_size", batch_size, "It is the expected number of records per step, e.g. 256.")
        if batch_size > NUM_TRAIN:
            raise ConfigurationError(
                f"batch_size={batch_size} is above the {NUM_TRAIN} training images. Use fewer, e.g. 256.",
                setting="batch_size",
            )
        positive_integer("aux_batch_size", aux_batch_size, "It is the number of public images per batch, e.g. 50.")
        for name, value in {"num_workers": num_workers, "seed": seed}.items():
            whole_number(name, value)
        self.batch_size, self.aux_batch_size, self.num_workers = batch_size, aux_batch_size, num_workers
        self.seed, self.aux = seed, aux

    def setup(self, stage: str | None = None) -> None:
        """Load and split the digits, whatever the stage: it takes milliseconds."""
        digits = optional("sklearn.datasets", "data=digits").load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32)[:, None] * (2 / LARGEST_PIXEL) - 1
        labels = torch.tensor(digits.target, dtype=torch.int64)
        rest, test = _split(torch.arange(len(labels)), labels, NUM_TEST, TEST_SPLIT_SEED)
        train, validation = _split(rest, labels, NUM_VALIDATION, self.seed)
        self.train, self.validation, self.test = (
            TensorDataset(images[rows], labels[rows]) for rows in (train, validation, test)
        )

    def train_dataloader(self) -> DataLoader[Any]:
        """Private records."""
        return make_loader(self.train, self.batch_size, self.num_workers, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Held-out records to choose hyperparameters with."""
        return make_loader(self.validation, NUM_VALIDATION, self.num_workers)

    def test_dataloader(self) -> DataLoader[Any]:
        """Records for the final figure only."""
        return make_loader(self.test, NUM_TEST, self.num_workers)

    def aux_dataloader(self) -> DataLoader[Any]:
        """Public images in the structure of the training batches, labelled at random unless `aux` says otherwise."""
        images = public_dataset(Photographs() if self.aux is None else self.aux, SHAPE, NUM_CLASSES)
        return make_loader(images, self.aux_batch_size, self.num_workers, shuffle=True)


def _split(rows: Tensor, labels: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """All but `size` of the rows, and those `size`, both with every label's share."""
    split = optional("sklearn.model_selection", "data=digits").train_test_split
    kept, taken = split(rows.numpy(), test_size=size, stratify=labels[rows].numpy(), random_state=seed)
    return torch.from_numpy(kept), torch.from_numpy(taken)
