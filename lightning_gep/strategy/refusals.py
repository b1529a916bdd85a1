"""What cannot be trained privately is refused here, with the fix, before training starts."""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
)
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from lightning_gep.errors import ConfigurationError
from lightning_gep.strategy.data import PoissonLoader, loader_options
from lightning_gep.strategy.internals import (
    parts_with_gradient_hooks,
    source_of_training_data,
    train_loader_in_list,
)
from lightning_gep.strategy.overlap import check_no_repeats, length, share_records
from lightning_gep.strategy.persons import PerPerson, check_not_inside

SEVERAL_LOADERS = (
    "The training data comes from several loaders, or from a list or dict returned by train_dataloader(). Return one "
    "DataLoader: combined loaders have no single batch to sample."
)
SEVERAL_OPTIMIZERS = (
    "configure_optimizers returns several optimizers, but a step has one private gradient. Return a single optimizer "
    "(it may have several parameter groups)."
)
SOME_RECORDS = "DataLoader(Subset(dataset, indices), shuffle=True) with the records that the sampler may draw"
UNFROZEN = (
    "What a step releases is fixed when training starts: the parameters that are trainable then. Remove it and decide "
    "before fit(); to train a part later, give it its own parameter group with lr=0.0 and raise that with a scheduler."
)


def check_trainer(trainer: Trainer) -> None:
    """Raises ConfigurationError for trainer settings under which the accounting would not hold."""
    settings: Any = trainer  # type checkers do not see all attributes that Lightning sets
    given = source_of_training_data(trainer)  # now, before a ledger is begun
    if isinstance(given, list | tuple | dict | CombinedLoader) and len(CombinedLoader(given).flattened) > 1:
        raise ConfigurationError(SEVERAL_LOADERS)
    check_no_accumulation(trainer)
    for callback in settings.callbacks:
        if isinstance(callback, GradientAccumulationScheduler) and set(callback.scheduling.values()) != {1}:
            raise ConfigurationError(
                f"GradientAccumulationScheduler({callback.scheduling}) would use a record more than once in an update. "
                "Remove it and use a larger batch_size; the strategy's microbatch_size limits memory."
            )
        if isinstance(callback, LearningRateFinder | BatchSizeFinder):
            raise ConfigurationError(
                f"{type(callback).__name__} would spend budget on trial steps whose results are not private. Remove "
                "it (a Tuner leaves it in trainer.callbacks, so create a new trainer). Try learning rates on public "
                "data; microbatch_size='auto' finds what fits into memory."
            )
        if isinstance(callback, BaseFinetuning):
            raise ConfigurationError(f"{type(callback).__name__} unfreezes parameters during training. {UNFROZEN}")
    if settings.overfit_batches:
        raise ConfigurationError(
            f"overfit_batches={settings.overfit_batches} uses the same records at every step, which is not Poisson "
            "sampling. Set overfit_batches=0, and overfit on public data instead.",
            setting="overfit_batches",
        )
    if settings.reload_dataloaders_every_n_epochs:
        raise ConfigurationError(
            f"reload_dataloaders_every_n_epochs={settings.reload_dataloaders_every_n_epochs} could change the training "
            "data during a run, but the guarantee is for a fixed number of records N. Set it to 0.",
            setting="reload_dataloaders_every_n_epochs",
        )
    if str(trainer.precision).startswith("16"):
        raise ConfigurationError(
            f"precision={trainer.precision!r} scales the loss, which per-sample clipping cannot see. "
            "Use precision='bf16-mixed' or '32-true'.",
            setting="precision",
        )


def check_no_accumulation(trainer: Trainer) -> None:
    """Raises ConfigurationError if an update would consist of several batches; a callback can change this any time."""
    if trainer.accumulate_grad_batches > 1:
        raise ConfigurationError(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} would use a record more than once in an "
            "update. Use accumulate_grad_batches=1 and a larger batch_size; microbatch_size limits memory.",
            setting="accumulate_grad_batches",
        )


@contextmanager
def several_optimizers_refused() -> Iterator[None]:
    """Lightning would recommend manual optimization, in which gradients reach the weights without noise."""
    try:
        yield
    except RuntimeError as error:
        if "multiple optimizers" not in str(error):
            raise
        raise ConfigurationError(SEVERAL_OPTIMIZERS) from error


def check_module(module: LightningModule, optimizers: list[Optimizer]) -> None:
    """Raises ConfigurationError for modules whose updates would bypass the strategy or release more than once."""
    if not module.automatic_optimization:
        raise ConfigurationError(
            "automatic_optimization=False: with manual optimization gradients would reach the weights without noise. "
            "Remove that line and return the loss from training_step, so that Lightning runs the optimizer."
        )
    if is_overridden("backward", module, LightningModule):
        raise ConfigurationError(
            f"{type(module).__name__} overrides backward(), which could add gradients without noise to the private "
            "ones. Remove it: the strategy differentiates the loss that training_step returns."
        )
    if len(optimizers) != 1:
        raise ConfigurationError(SEVERAL_OPTIMIZERS)
    if isinstance(optimizers[0], LBFGS):
        raise ConfigurationError(
            "LBFGS evaluates the loss several times per step, and each evaluation would be another release. Use SGD or "
            "Adam."
        )
    check_no_gradient_hooks(module)
    _check_embeddings(module)


def check_no_gradient_hooks(module: LightningModule) -> None:
    """Raises ConfigurationError if something would see gradients before the noise."""
    hooked = parts_with_gradient_hooks(module)
    if hooked:
        raise ConfigurationError(
            f"Hooks on the gradients of {', '.join(hooked[:3])}{', …' if len(hooked) > 3 else ''} would see them "
            "before the noise. Remove them; with W&B call watch(model, log='parameters'), not 'gradients' or 'all'."
        )


def check_trainable(module: LightningModule, trained: Container[str]) -> None:
    """Raises ConfigurationError if parameters were frozen or unfrozen since training started."""
    changed = [name for name, p in module.named_parameters() if p.requires_grad != (name in trained)]
    if changed:
        raise ConfigurationError(
            f"requires_grad of {', '.join(changed[:3])}{', …' if len(changed) > 3 else ''} changed during training. "
            f"{UNFROZEN}"
        )


def _check_embeddings(module: LightningModule) -> None:
    """Raises ConfigurationError for embeddings that write to their weights, even frozen ones, or are sparse."""
    found = [(n or "the module", m) for n, m in module.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    sparse = [name for name, part in found if part.sparse and part.weight.requires_grad]
    if sparse:
        raise ConfigurationError(
            f"{', '.join(sparse)}: sparse=True gives gradients that show which rows the records use, and noise has to "
            "hide that: it goes to all rows. Set sparse=False, and use Adam or SGD instead of SparseAdam."
        )
    renormalized = [f"{name} has max_norm={part.max_norm}" for name, part in found if part.max_norm is not None]
    if renormalized:
        raise ConfigurationError(
            f"{', '.join(renormalized)}: every lookup would renormalize rows of the weights without noise. Set "
            "max_norm=None, and renormalize the vectors in forward after the lookup, or all rows in on_train_batch_end."
        )


def check_loader(loader: Any) -> DataLoader[Any]:
    """The train loader, if Poisson sampling can replace its sampler."""
    if not isinstance(loader, DataLoader):
        raise ConfigurationError(
            f"The train loader is a {type(loader).__name__}. Use one torch.utils.data.DataLoader over a dataset with a "
            "length; combined loaders have no single batch to sample."
        )
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise ConfigurationError(
            f"The training data is a {type(loader.dataset).__name__}, which cannot be sampled by index. Use a dataset "
            "with __getitem__ and __len__: Poisson sampling draws every record with the same known probability."
        )
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise ConfigurationError(
            f"The train loader has its own batch sampler ({type(loader.batch_sampler).__name__}). Use "
            "DataLoader(..., batch_size=...): the strategy draws the batches itself."
        )
    if type(loader.sampler) is SubsetRandomSampler:
        same = {"batch_size": loader.batch_size, "drop_last": loader.drop_last, **loader_options(loader)}
        loader = DataLoader(_records_read(loader), shuffle=True, **same)
    sampler = loader.sampler
    uniform = isinstance(sampler, SequentialSampler | DistributedSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(loader.dataset)
    )
    if not uniform or type(sampler).__name__ == "DistributedSamplerWrapper":
        fix = "shuffle=True" if isinstance(sampler, RandomSampler) else SOME_RECORDS
        raise ConfigurationError(
            f"The train loader samples by {type(sampler).__name__}, which does not draw every record with the same "
            f"probability. Use {fix}, and put weights into the loss, as a factor per record."
        )
    if not isinstance(loader.dataset, PerPerson):
        check_not_inside(loader.dataset)
    check_no_repeats(loader.dataset)
    return loader


def check_sampled(trainer: Trainer) -> None:
    """Raises ConfigurationError if training would read a loader that Poisson sampling has not replaced."""
    loader: Any = trainer.train_dataloader
    if not isinstance(loader[0] if train_loader_in_list(trainer) else loader, PoissonLoader):
        raise ConfigurationError(SEVERAL_LOADERS)


def _records_read(loader: Any) -> Any:
    """The dataset of a loader, or the part of it that its sampler is limited to."""
    data = getattr(loader, "dataset", loader)
    sampler = getattr(loader, "sampler", None)
    return Subset(data, list(sampler.indices)) if type(sampler) is SubsetRandomSampler else data


class HeldOutCheck:
    """Checks that no validation loader of a fit reads training records, in whatever order Lightning prepares them."""

    def __init__(self) -> None:
        self.training_data: Dataset[Any] | None = None
        self._validation_loaders: list[object] = []

    def add_validation(self, loader: object) -> None:
        """A loader that validation reads, in a sanity check possibly before the train loader is known."""
        self._validation_loaders.append(loader)
        self._check()

    def set_training(self, trainer: Trainer, dataset: Dataset[Any]) -> None:
        """The training data. Lightning prepares the validation loaders now; it might do so only after some steps."""
        if self.training_data is not None:
            raise ConfigurationError(SEVERAL_LOADERS)
        self.training_data = dataset
        if trainer.enable_validation:
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.setup_data()  # does nothing if a sanity check has done it
            trainer.training = True
        self._check()

    def _check(self) -> None:
        """Raises ConfigurationError if one of the loaders reads training records, as found by `share_records`."""
        while self.training_data is not None and self._validation_loaders:
            data = _records_read(self._validation_loaders.pop())
            if isinstance(self.training_data, PerPerson) and length(data) and self.training_data.shares_persons(data):
                shared = "has records of persons in the training data"
            elif share_records(data, self.training_data):
                shared = "contains training records: both draw on the same dataset"
            else:
                continue
            raise ConfigurationError(
                f"The validation data of this fit ({type(data).__name__}) {shared}. Validation results are computed "
                "without noise, are logged, and may decide which weights are kept and when training ends. Hold out "
                "other records or persons, e.g. with torch.utils.data.random_split or a SubsetRandomSampler in each "
                "loader, or set limit_val_batches=0. After training, trainer.validate accepts training records; no ε "
                "covers it."
            )


def check_same_structure(public_batch: Any, private_batch: Any) -> None:
    """Raises ConfigurationError if public batches have another structure than training batches."""
    public, private = _described(public_batch), _described(private_batch)
    if public != private:
        shown = [_described(batch, sizes=True) for batch in (public_batch, private_batch)]
        raise ConfigurationError(
            f"Public batches are {shown[0]}, but training batches are {shown[1]}. "
            "Give public data the structure of the training data; RandomLabels(dataset, num_classes) adds labels.",
            setting="aux_dataloader",
        )


def _described(batch: Any, *, sizes: bool = False) -> str:
    """The structure in words: containers, and tensors by type and number of dimensions, or by the shape of a record."""
    if isinstance(batch, torch.Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')}{list(batch.shape[1:]) if sizes else batch.dim()}"
    if isinstance(batch, dict):
        entries = sorted(batch.items(), key=str)
        return "{" + ", ".join(f"{key!r}: {_described(value, sizes=sizes)}" for key, value in entries) + "}"
    if isinstance(batch, list | tuple):
        if _is_plain(batch):
            return f"a list of {type(batch[0]).__name__}"
        return "(" + ", ".join(_described(item, sizes=sizes) for item in batch) + ")"
    return type(batch).__name__


def _is_plain(batch: Any) -> bool:
    return bool(batch) and all(isinstance(item, str | int | float) for item in batch)


def check_monitors(trainer: Trainer, not_private: Iterable[str]) -> None:
    """Raises ConfigurationError if a callback or scheduler monitors a value that is not private."""
    names = set(not_private)
    deciders = [(type(callback).__name__, getattr(callback, "monitor", None)) for callback in trainer.callbacks]  # type: ignore[attr-defined]
    deciders += [(type(c.scheduler).__name__, c.monitor) for c in trainer.lr_scheduler_configs if c.reduce_on_plateau]
    for who, monitor in deciders:
        if monitor and (monitor in names or any(monitor.startswith(f"{name}_") for name in names)):
            raise ConfigurationError(
                f"{who} monitors {monitor!r}, which is computed from private records, so its decisions would leak "
                "them. Monitor a value from validation_step on data that is not private, or none."
            )
        if monitor and monitor.startswith("nonprivate/"):
            raise ConfigurationError(f"{who} monitors {monitor!r}, which is not private. Monitor a validation value.")
