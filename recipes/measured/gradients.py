"""Per-sample gradients of private and of public records, at any weights of one training."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.linalg import row_norms
from lightning_gep.algorithm.subspace import Anchors
from lightning_gep.cli.configs import config_directory
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import Backend, choose_backend, microbatches
from lightning_gep.strategy.public_data import PublicStream
from recipes.data.records import drawn_rows
from recipes.measured.batch import ByGroup, products_of

PUBLIC = {
    "imagenet": ("imagenet", "random"),
    "cifar100": ("cifar100", "random"),
    "test_samples": ("test_samples", "random"),
    "test_samples_true_labels": ("test_samples", "true"),
}
"""The public images of the paper's ablation: the file in conf/aux, and their labels."""
RANDOM = "random"
"""A basis of random directions, without public images."""
MICROBATCH = 100
RECORDS_CHECKED = 64


class MeasuredGradients:
    """Gradients at several checkpoints, always of the same private records."""

    def __init__(self, config: DictConfig, *, records: int, anchors: int) -> None:
        self.config, self.records, self.num_anchors = config, records, anchors
        datamodule = _set_up(config)
        self.num_records = len(datamodule.train)
        if records > self.num_records:
            raise ConfigurationError(f"--batch {records} is above the {self.num_records} training images. Use fewer.")
        rows = drawn_rows(self.num_records, records, config.data.seed)
        self._private = DataLoader(Subset(datamodule.train, rows), batch_size=MICROBATCH)
        self.model = instantiate(config.model)
        grouping = OmegaConf.to_container(config.mechanism, resolve=True)["groups"]  # type: ignore[call-overload,index]
        self.groups = ParameterGroups.from_module(self.model, grouping)
        self._public = datamodule.aux_dataloader()

    @cached_property
    def _backend(self) -> Backend:
        public = next(PublicStream(self._public).batches(RECORDS_CHECKED))
        return choose_backend(self.model, self._loss, self.groups, public, self.config.mechanism.gradients)

    def _loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def use(self, weights: Path) -> None:
        """Load other weights."""
        self.model.load_state_dict(torch.load(weights, weights_only=True, map_location="cpu"))

    def private(self) -> Iterator[Tensor]:
        """Gradients of the private records, a microbatch at a time; zeros for non-finite ones, as in training."""
        for batch in self._private:
            rows = self._backend(batch)
            rows[~torch.isfinite(row_norms(rows))] = 0.0
            yield rows

    def products(self) -> ByGroup:
        """The Gram matrix of the private gradients in each group. All gradients are in memory while it is computed."""
        gradients = torch.empty(self.records, self.groups.num_parameters)
        start = 0
        for rows in self.private():
            gradients[start : start + len(rows)] = rows
            start += len(rows)
        return products_of(gradients, self.groups)

    def anchors(self, source: str, step: int) -> Anchors:
        """Sweeps over the gradients of public images, with new random labels at each step."""
        config = self.config.copy()
        name, labels = PUBLIC[source]
        config.aux = OmegaConf.load(config_directory() / "aux" / f"{name}.yaml")
        config.aux.labels, config.aux.count = labels, self.num_anchors
        loader = _set_up(config).aux_dataloader()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step)
            batches = list(loader)
        return lambda: (self._backend(part) for batch in batches for part in microbatches(batch, MICROBATCH))


def _set_up(config: DictConfig) -> Any:
    datamodule = instantiate(config.data)
    datamodule.setup()
    return datamodule
