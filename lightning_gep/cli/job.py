"""One training job, from its configuration to its outcome."""

import time
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import Trainer, seed_everything
from omegaconf import DictConfig, OmegaConf

from lightning_gep.checks import positive_integer
from lightning_gep.cli.configs import check_keys
from lightning_gep.cli.summary import Outcome


def train(config: DictConfig) -> Outcome:
    """Train and test; the seed decides the initial weights and nothing that privacy rests on."""
    check_keys(config)
    if config.threads is not None:
        torch.set_num_threads(positive_integer("threads", config.threads, "Use 1, or null for torch's own choice."))
    seed_everything(config.seed)
    datamodule, model = instantiate(config.data), instantiate(config.model)
    trainer = make_trainer(config)
    start = time.perf_counter()
    trainer.fit(model, datamodule)
    seconds = time.perf_counter() - start
    (metrics,) = trainer.test(model, datamodule, verbose=False)
    return Outcome(
        mechanism=config.mechanism.mechanism,
        test_accuracy=metrics["test/accuracy"],
        privacy=trainer.strategy.privacy.report(),  # type: ignore[attr-defined]  # it is a GEPStrategy
        seconds=seconds,
        output_dir=config.output_dir,
    )


def make_trainer(config: DictConfig) -> Trainer:
    """The trainer with its strategy, callbacks and loggers."""
    # Finished objects go to the trainer itself: passed through `instantiate` they would be copied.
    trainer: Trainer = instantiate(config.trainer)(
        strategy=instantiate(config.mechanism, **config.privacy),
        callbacks=_each(config, "callbacks"),
        logger=_each(config, "logger") or False,
    )
    return trainer


def _each(config: DictConfig, group: str) -> list[Any]:
    """Everything a group lists by name; a group may list nothing."""
    return [instantiate(entry) for entry in (OmegaConf.select(config, group) or {}).values()]
