"""MNIST, SVHN and CIFAR-10 to train on privately, with public images beside them."""

from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, Subset

from lightning_gep.arguments import boolean, one_of, positive_integer, whole_number
from lightning_gep.errors import ConfigurationError
from recipes.data.image_sets import PRIVATE
from recipes.data.public import PublicImages, TestSamples, labelled, public_dataset
from recipes.data.records import ArrayRecords, ImageRecords, drawn_rows, make_loader, other_rows
from recipes.data.store import Store

EVALUATION_BATCH = 1000
RESERVE_SEED = 0
"""Of the test images that may become public: fixed, so that the others are the same in every run."""


class ImageDataModule(LightningDataModule):
    """Private training images, a validation split drawn by `seed`, and test images, which no seed changes.

    Pixels are scaled by the range of their format, and splits depend on seeds alone: nothing here depends on private
    records, and N is a public number.

    Args:
        name: mnist, svhn or cifar10.
        directory: Where the files are: an .npz, or the official files.
        download: Let torchvision download missing files.
        extra: Add SVHN's 531 131 extra training images.
        batch_size: Expected records per step.
        aux_batch_size: Public images per batch.
        num_workers: Worker processes of each loader.
        validation_size: Training images held out for validation; 0 trains on all and does not validate.
        seed: Draws the validation images.
        reserved_test_size: Test images kept out of the evaluation, as `TestSamples` would, to compare runs with other
            public images on the same test set.
        aux: Public images for `aux_dataloader`; `TestSamples` are taken out of the test set.

    """

    def __init__(
        self,
        name: str,
        directory: str = "data",
        download: bool = False,
        extra: bool = False,
        batch_size: int = 1000,
        aux_batch_size: int = 250,
        num_workers: int = 0,
        validation_size: int = 5000,
        seed: int = 0,
        reserved_test_size: int = 0,
        aux: PublicImages | TestSamples | Dataset[Any] | None = None,
    ) -> None:
        super().__init__()
        self.image_set = PRIVATE[one_of("name", name, PRIVATE)]
        positive_integer("batch_size", batch_size, "It is the expected number of records per step, e.g. 1000.")
        positive_integer("aux_batch_size", aux_batch_size, "It is the number of public images per batch, e.g. 250.")
        whole_number("validation_size", validation_size, "Use 0 to train on all records.")
        whole_number("reserved_test_size", reserved_test_size, "Use 0 to test on all records.")
        whole_number("num_workers", num_workers)
        whole_number("seed", seed)
        if boolean("extra", extra) and "extra" not in self.image_set.parts:
            raise ConfigurationError(
                f"extra={extra}, but {self.image_set.title} has no extra images. Use extra=false.", setting="extra"
            )
        self.store = Store.at(directory, download)
        self.train_parts = ("train", "extra") if extra else ("train",)
        self.batch_size, self.aux_batch_size, self.num_workers = batch_size, aux_batch_size, num_workers
        self.validation_size, self.seed = validation_size, seed
        self.reserved_test_size, self.aux = reserved_test_size, aux
        self.train: Dataset[Any] | None = None
        if validation_size == 0:
            # As if not overridden: Lightning would warn about an empty loader.
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]

    def check_files(self) -> None:
        """Raises MissingDataError if files are missing; reads none of them."""
        for parts in (self.train_parts, ("test",)):
            self.store.check(self.image_set, parts)
        if isinstance(self.aux, PublicImages):
            self.aux.check_files()

    def prepare_data(self) -> None:
        """Download, or compute features, in one process; the others read what is there then."""
        self.setup()

    def setup(self, stage: str | None = None) -> None:
        """Read the records and split them; a second call does nothing."""
        if self.train is not None:
            return
        records, test_records = self.load()
        size = self._checked_sizes(len(records), len(test_records))
        chosen = drawn_rows(len(records), self.validation_size, self.seed)
        self.validation = Subset(records, chosen)
        self.train = Subset(records, other_rows(len(records), chosen)) if chosen else records
        reserved = drawn_rows(len(test_records), size, RESERVE_SEED)
        self.test = Subset(test_records, other_rows(len(test_records), reserved)) if reserved else test_records
        self._test_records = test_records

    def load(self) -> tuple[ArrayRecords, ArrayRecords]:
        """All records for training and validation, and all for testing."""
        parts = (self.train_parts, ("test",))
        train, test = (ImageRecords(*self.store.load(self.image_set, part)) for part in parts)
        return train, test

    @property
    def num_classes(self) -> int:
        """Labels are 0 … num_classes − 1."""
        return self.image_set.num_classes

    def load_public(self, aux: PublicImages | Dataset[Any]) -> Dataset[Any]:
        """Public records (input, label), as the private ones are."""
        return public_dataset(aux, self.image_set.shape, self.image_set.num_classes)

    def train_dataloader(self) -> DataLoader[Any]:
        """Private records."""
        assert self.train is not None
        return make_loader(self.train, self.batch_size, self.num_workers, shuffle=True)

    def val_dataloader(self) -> Any:
        """Held-out records to choose hyperparameters with."""
        return make_loader(self.validation, EVALUATION_BATCH, self.num_workers)

    def test_dataloader(self) -> DataLoader[Any]:
        """Records for the final figure only."""
        return make_loader(self.test, EVALUATION_BATCH, self.num_workers)

    def aux_dataloader(self) -> DataLoader[Any]:
        """Public records in the structure of the training batches."""
        if self.aux is None:
            raise ConfigurationError(
                "aux=None: there are no public images. Use e.g. aux=imagenet, or mechanism=gp, which needs none.",
                setting="aux",
            )
        if isinstance(self.aux, TestSamples):
            rows = drawn_rows(len(self._test_records), self.aux.count, RESERVE_SEED)
            public = labelled(Subset(self._test_records, rows), self.aux.labels, self.image_set.num_classes)
        else:
            public = self.load_public(self.aux)
        return make_loader(public, self.aux_batch_size, self.num_workers, shuffle=True)

    def _checked_sizes(self, records: int, tests: int) -> int:
        """Test images to keep out of the evaluation. Raises ConfigurationError for sizes that cannot work."""
        if self.validation_size >= records:
            raise ConfigurationError(
                f"validation_size={self.validation_size} leaves none of the {records} training images to train on. "
                "Use fewer, or 0.",
                setting="validation_size",
            )
        left = records - self.validation_size
        if self.batch_size > left:
            raise ConfigurationError(
                f"batch_size={self.batch_size} is above the {left} training images. Use fewer, e.g. {min(1000, left)}.",
                setting="batch_size",
            )
        given_up = self.aux.count if isinstance(self.aux, TestSamples) else 0
        name, size = max(("reserved_test_size", self.reserved_test_size), ("count", given_up), key=lambda pair: pair[1])
        if size >= tests:
            raise ConfigurationError(
                f"{name}={size} leaves none of the {tests} test images to test on. Use fewer.", setting=name
            )
        return size
