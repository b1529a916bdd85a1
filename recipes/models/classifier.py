"""An ordinary Lightning module that classifies images, as a user of Lightning would write it."""

from collections.abc import Callable, Iterator
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics.classification import MulticlassAccuracy

from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError
from recipes.models.augmentation import random_copies

OptimizerFactory = Callable[[Iterator[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]
Batch = tuple[Tensor, Tensor]


class ImageClassifier(LightningModule):
    """A network trained on the mean cross entropy of (images, labels), stepped through its schedule once an epoch.

    With `copies`, it is trained on so many randomly shifted and mirrored copies of each image, averaged. Logs
    "train/loss", "val/loss", "val/accuracy" and "test/accuracy".
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory,
        num_classes: int = 10,
        copies: int | None = None,
    ) -> None:
        super().__init__()
        self.network, self.make_optimizer, self.make_scheduler = network, optimizer, scheduler
        self.num_classes = positive_integer("num_classes", num_classes, "It is the number of classes, e.g. 10.")
        self.copies = copies
        if copies is not None:
            positive_integer("copies", copies, "It is the number of random copies of an image to average, e.g. 4.")
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def setup(self, stage: str) -> None:
        """Compare the number of classes with that of the data, where those tell it."""
        classes = getattr(getattr(self.trainer, "datamodule", None), "num_classes", self.num_classes)
        if classes > self.num_classes:
            raise ConfigurationError(
                f"num_classes={self.num_classes}, but the data have {classes} classes. "
                f"Use model.num_classes={classes}.",
                setting="num_classes",
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross entropy."""
        images, labels = batch
        if self.copies is not None:
            images, labels = random_copies(images, self.copies), labels.repeat_interleave(self.copies)
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and accuracy on the validation images."""
        images, labels = batch
        logits = self(images)
        self.val_accuracy(logits, labels)
        self.log("val/loss", nn.functional.cross_entropy(logits, labels), sync_dist=True)
        self.log("val/accuracy", self.val_accuracy, prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Accuracy on the test images."""
        images, labels = batch
        self.test_accuracy(self(images), labels)
        self.log("test/accuracy", self.test_accuracy)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The class of each image."""
        images = batch[0] if isinstance(batch, list | tuple) else batch
        return self(images).argmax(dim=1)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The optimizer and its schedule."""
        optimizer = self.make_optimizer(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.make_scheduler(optimizer)}}
