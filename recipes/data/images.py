"""MNIST, SVHN and CIFAR-10 to train on privately, with public images beside them."""

from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, Subset

from lightning_gep.arguments import boolean, positive_integer, whole_number
from lightning_gep.errors import ConfigurationError
from recipes.data.image_sets import image_set
from recipes.data.loaders import make_loader
from recipes.data.loading import Store
from recipes.data.public import PublicImages, TestSamples, labelled, public_dataset
from recipes.data.records import ArrayRecords, ImageRecords
from recipes.data.splits import drawn_rows, other_rows

EVALUATION_BATCH = 1000
RESERVE_SEED = 0
"""Of the test images that may become public: fixed, so that the others are the same in every run."""


class ImageDataModule(LightningDataModule):
    """Private training images, a validation part of them drawn by `seed`, and test images, which no seed changes.

    `name` is mnist, svhn or cifar10. Its files are looked for in `directory` (an .npz, then the official format), and
    downloaded if `download`; the first use turns them into arrays in `cache_directory`. `extra` adds SVHN's additional
    training images. With `validation_size=0` all N images are trained on and nothing validates.

    `aux` gives the public images of `aux_dataloader`, in the shape of the private ones. `TestSamples` are taken out of
    the test set; `reserved_test_size` keeps as many out of it with other public images too, so that runs can be
    compared on the same test images.

    Pixels are scaled by the range of their format. Which image goes where depends on seeds alone. So none of this reads
    a private record, and N stays a public number.
    """

    def __init__(
        self,
        name: str,
        directory: str = "data",
        cache_directory: str | None = None,
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
        self.image_set = image_set(name)
        positive_integer("batch_size", batch_size, "It is the mean number of records a step draws, e.g. 1000.")
        positive_integer("aux_batch_size", aux_batch_size, "It is the number of public images read at once, e.g. 250.")
        whole_number("validation_size", validation_size, "Use 0 to train on all records.")
        whole_number("reserved_test_size", reserved_test_size, "Use 0 to test on all records.")
        whole_number("num_workers", num_workers)
        whole_number("seed", seed)
        if boolean("extra", extra) and "extra" not in self.image_set.parts:
            raise ConfigurationError(
                f"extra={extra}, but {self.image_set.title} has no extra images. Use extra=false.", setting="extra"
            )
        self.store = Store.at(directory, cache_directory, download)
        self.train_parts = ("train", "extra") if extra else ("train",)
        self.batch_size, self.aux_batch_size, self.num_workers = batch_size, aux_batch_size, num_workers
        self.validation_size, self.seed = validation_size, seed
        self.reserved_test_size, self.aux = reserved_test_size, aux
        self.train: Dataset[Any] | None = None
        if validation_size == 0:
            # As if there were no such method: of an empty loader Lightning warns in words that explain nothing.
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]

    def prepare_data(self) -> None:
        """Make the cache, in one process: the others find it whole."""
        self.load()

    def setup(self, stage: str | None = None) -> None:
        """Map the arrays and split them, whatever the stage; the second time there is nothing to do."""
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
        """Records that are not trained on, to choose hyper-parameters with."""
        return make_loader(self.validation, EVALUATION_BATCH, self.num_workers)

    def test_dataloader(self) -> DataLoader[Any]:
        """Records for the figure that is reported, and for nothing else."""
        return make_loader(self.test, EVALUATION_BATCH, self.num_workers)

    def aux_dataloader(self) -> DataLoader[Any]:
        """Public records in the structure of the training batches."""
        if self.aux is None:
            raise ConfigurationError(
                "aux=None: there are no public images. Use e.g. aux=imagenet, or mechanism=gp, which needs none."
            )
        if isinstance(self.aux, TestSamples):
            rows = drawn_rows(len(self._test_records), self.aux.count, RESERVE_SEED)
            public = labelled(Subset(self._test_records, rows), self.aux.labels, self.image_set.num_classes)
        else:
            public = self.load_public(self.aux)
        return make_loader(public, self.aux_batch_size, self.num_workers, shuffle=True)

    def _checked_sizes(self, records: int, tests: int) -> int:
        """The number of test images to keep out of the evaluation, if all sizes go with each other."""
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
            raise ConfigurationError(f"{name}={size} leaves none of the {tests} test images to test on. Use fewer.")
        return size
