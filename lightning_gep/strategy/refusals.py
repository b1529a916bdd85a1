"""What cannot be trained privately is refused here, in words, before training starts."""

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder
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
from lightning_gep.strategy.same_records import check_no_repeats, share_records

SEVERAL_LOADERS = (
    "The training data comes from several loaders, or from a list or dict that train_dataloader() returns. Return one "
    "DataLoader: combined loaders have no single batch to sample."
)
SEVERAL_OPTIMIZERS = (
    "configure_optimizers returns several optimizers; one private gradient can serve one. Return a single optimizer "
    "(it may have several parameter groups)."
)


def check_trainer(trainer: Trainer) -> None:
    """Raises ConfigurationError for trainer settings under which the accounting would not hold."""
    settings: Any = trainer  # Lightning sets some of these where type checkers do not see it
    check_no_accumulation(trainer)
    for callback in settings.callbacks:
        if isinstance(callback, GradientAccumulationScheduler) and set(callback.scheduling.values()) != {1}:
            raise ConfigurationError(
                f"GradientAccumulationScheduler({callback.scheduling}) would put a record into one update more than "
                "once. Remove it and use a larger batch_size; the strategy's microbatch_size limits memory."
            )
        if isinstance(callback, LearningRateFinder | BatchSizeFinder):
            raise ConfigurationError(
                f"{type(callback).__name__} would spend budget on trial steps whose results are not private. Remove "
                "it (a Tuner leaves it in trainer.callbacks, so make a new trainer); try learning rates on public "
                "data, and leave the batch in memory to microbatch_size='auto'."
            )
    if settings.overfit_batches:
        raise ConfigurationError(
            f"overfit_batches={settings.overfit_batches} takes the same records at every step, which is not Poisson "
            "sampling. Set overfit_batches=0, and try the model on public data instead.",
            setting="overfit_batches",
        )
    if settings.reload_dataloaders_every_n_epochs:
        raise ConfigurationError(
            f"reload_dataloaders_every_n_epochs={settings.reload_dataloaders_every_n_epochs} could change the training "
            "data during a run, whose size N the guarantee rests on. Set it to 0.",
            setting="reload_dataloaders_every_n_epochs",
        )
    if str(trainer.precision).startswith("16"):
        raise ConfigurationError(
            f"precision={trainer.precision!r} scales the loss, which per-sample clipping cannot see. "
            "Use precision='bf16-mixed' or '32-true'.",
            setting="precision",
        )


def check_no_accumulation(trainer: Trainer) -> None:
    """Raises ConfigurationError if an update would be made of several batches, as a callback can decide at any time."""
    if trainer.accumulate_grad_batches > 1:
        raise ConfigurationError(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} would put a record into one update more than "
            "once. Use accumulate_grad_batches=1 and a larger batch_size; microbatch_size limits memory.",
            setting="accumulate_grad_batches",
        )


def check_module(module: LightningModule, optimizers: list[Optimizer]) -> None:
    """Raises ConfigurationError for modules whose updates the strategy would not see or would see twice."""
    if not module.automatic_optimization:
        raise ConfigurationError(
            "automatic_optimization=False: with manual optimisation gradients would reach the weights without noise. "
            "Let Lightning run the optimizer (remove that line, return the loss from training_step)."
        )
    if is_overridden("backward", module, LightningModule):
        raise ConfigurationError(
            f"{type(module).__name__} has a backward() of its own, which could add gradients without noise to the "
            "private ones. Remove it: the strategy differentiates the loss that training_step returns."
        )
    if len(optimizers) != 1:
        raise ConfigurationError(SEVERAL_OPTIMIZERS)
    optimizer = optimizers[0]
    if isinstance(optimizer, LBFGS):
        raise ConfigurationError(
            "LBFGS evaluates the loss several times a step, and every evaluation would be a release of its own. "
            "Use SGD or Adam."
        )
    check_no_gradient_hooks(module)
    check_no_rows_are_shortened(module)


def check_no_gradient_hooks(module: LightningModule) -> None:
    """Raises ConfigurationError if something would see gradients before the noise."""
    hooked = [name for name, p in module.named_parameters() if p._backward_hooks]
    hooked += [name or "the module" for name, part in module.named_modules() if part._backward_hooks]
    hooked += [name or "the module" for name, part in module.named_modules() if part._backward_pre_hooks]
    if hooked:
        raise ConfigurationError(
            f"Hooks on the gradients of {', '.join(hooked[:3])}{', …' if len(hooked) > 3 else ''} would see them "
            "before the noise. Remove them; with W&B call watch(model, log='parameters'), not 'gradients' or 'all'."
        )


def check_no_rows_are_shortened(module: LightningModule) -> None:
    """Raises ConfigurationError for embeddings that write to their weights, also to frozen ones, on looking rows up."""
    shortening = [
        f"{name or 'the module'} has max_norm={part.max_norm}"
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
    ]
    if shortening:
        raise ConfigurationError(
            f"{', '.join(shortening)}: rows that records look up would be shortened in the weights, without noise. Set "
            "max_norm=None; shorten the vectors that forward has looked up instead, or all rows in on_train_batch_end."
        )


def check_loader(loader: Any) -> DataLoader[Any]:
    """The train loader, if Poisson sampling can stand in for the way it samples."""
    if not isinstance(loader, DataLoader):
        raise ConfigurationError(
            f"The train loader is a {type(loader).__name__}. Use one torch.utils.data.DataLoader over a data set with "
            "a length; combined loaders have no single batch to sample."
        )
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise ConfigurationError(
            f"The training data is a {type(loader.dataset).__name__}, which cannot be sampled by index. Use a data set "
            "with __getitem__ and __len__: Poisson sampling draws every record with the same known probability."
        )
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise ConfigurationError(
            f"The train loader has its own batch sampler ({type(loader.batch_sampler).__name__}). Use "
            "DataLoader(..., batch_size=...): the strategy draws the batches itself."
        )
    if type(loader.sampler) is SubsetRandomSampler:
        loader = _with_records(loader, records_read(loader))
    sampler = loader.sampler
    uniform = isinstance(sampler, SequentialSampler | DistributedSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(loader.dataset)
    )
    if not uniform or type(sampler).__name__ == "DistributedSamplerWrapper":
        raise ConfigurationError(
            f"The train loader samples by {type(sampler).__name__}, which does not draw every record with the same "
            "probability. Use shuffle=True; weights belong into the loss, as a factor per record."
        )
    check_no_repeats(loader.dataset)
    return loader


def records_read(loader: Any) -> Any:
    """The data set of a loader, or the part of it that its sampler is limited to."""
    data = getattr(loader, "dataset", loader)
    sampler = getattr(loader, "sampler", None)
    return Subset(data, list(sampler.indices)) if type(sampler) is SubsetRandomSampler else data


def _with_records(loader: DataLoader[Any], dataset: Dataset[Any]) -> DataLoader[Any]:
    """The loader for another data set, all of it."""
    return DataLoader(
        dataset,
        batch_size=loader.batch_size,
        shuffle=True,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if loader.num_workers else None,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def check_held_out(validation_loader: Any, training_data: Dataset[Any]) -> None:
    """Raises ConfigurationError if a validation loader of a fit reads training records, as `share_records` tells."""
    data = records_read(validation_loader)
    if share_records(data, training_data):
        raise ConfigurationError(
            f"The validation data of this fit ({type(data).__name__}) holds training records: both draw on the same "
            "data set. What validation computes from them has no noise, is logged, and may decide which weights are "
            "kept and when training ends. Hold out other records, e.g. by torch.utils.data.random_split or a "
            "SubsetRandomSampler in each loader, or set limit_val_batches=0. Training records can be looked at by "
            "trainer.validate after training, which no ε covers."
        )


def request_validation_loaders(trainer: Trainer) -> None:
    """Makes Lightning prepare the validation loaders of a fit now: it may do so when steps have been made only."""
    if trainer.enable_validation:
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.setup_data()  # nothing is done twice, as after a sanity check
        trainer.training = True


def check_same_structure(public_batch: Any, private_structure: Any) -> None:
    """Raises ConfigurationError if auxiliary batches are built differently from training batches."""
    if structure(public_batch) != structure(private_structure):
        raise ConfigurationError(
            f"Auxiliary batches are {describe(public_batch)}, but training batches are {describe(private_structure)}. "
            "Give the auxiliary data the structure of the training data; RandomLabels(dataset, num_classes) adds them."
        )


def structure(batch: Any) -> Any:
    """Containers, and type and number of dimensions of the tensors in them; sizes may differ, as those of texts do."""
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.dim()
    if isinstance(batch, dict):
        return {key: structure(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        plain = batch and all(isinstance(item, str | int | float) for item in batch)
        return type(batch[0]) if plain else [structure(item) for item in batch]
    return type(batch)


def describe(batch: Any) -> str:
    """The structure of a batch in words: containers, and shape and type of a record's tensors."""
    if isinstance(batch, torch.Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')}{list(batch.shape[1:])}"
    if isinstance(batch, dict):
        return "{" + ", ".join(f"{key!r}: {describe(value)}" for key, value in sorted(batch.items(), key=str)) + "}"
    if isinstance(batch, list | tuple):
        if batch and all(isinstance(item, str | int | float) for item in batch):
            return f"a list of {type(batch[0]).__name__}"
        return "(" + ", ".join(describe(item) for item in batch) + ")"
    return type(batch).__name__


def check_monitors(trainer: Trainer, not_private: Iterable[str]) -> None:
    """Raises ConfigurationError if a callback or scheduler decides by a value that is not private."""
    names = set(not_private)
    deciders = [(type(callback).__name__, getattr(callback, "monitor", None)) for callback in trainer.callbacks]  # type: ignore[attr-defined]
    deciders += [(type(c.scheduler).__name__, c.monitor) for c in trainer.lr_scheduler_configs if c.reduce_on_plateau]
    for who, monitor in deciders:
        if monitor and (monitor in names or any(monitor.startswith(f"{name}_") for name in names)):
            raise ConfigurationError(
                f"{who} monitors {monitor!r}, which training computes from private records: what it decides would leak "
                "them. Monitor a value from validation_step on data that is not private, or none."
            )
        if monitor and monitor.startswith("nonprivate/"):
            raise ConfigurationError(f"{who} monitors {monitor!r}, which is not private. Monitor a validation value.")
