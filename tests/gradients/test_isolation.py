"""Losses that have no right per-sample gradients are refused, each with what is wrong and what to do."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from lightning_gep.errors import ConfigurationError
from tests.gradients_zoo import (
    CLASSES,
    FEATURES,
    Autoencoder,
    Classifier,
    Steps,
    batch_of,
    choose,
    cross_entropy,
    mlp,
    text,
)
from tests.gradients_zoo import N as RECORDS


def loss(function: Callable[[Tensor, Tensor], Tensor]) -> LightningModule:
    """A module whose loss is a function of the network's outputs and the labels."""
    return Steps(lambda module, batch: function(module(batch[0]), batch[1]))


def with_batch_norm(**settings: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 7), nn.BatchNorm1d(7, **settings), nn.Tanh(), nn.Linear(7, CLASSES))


def contrastive(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z @ z.T, torch.arange(len(z)))


def mixup(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(0.7 * logits + 0.3 * logits[torch.randperm(len(y))], y)


def class_weights(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, weight=torch.tensor([1.0, 2.0, 5.0]))


def summed(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="sum")


class OverWords(LightningModule):
    """The mean runs over the words of all records, of which some have more than others."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        return F.cross_entropy(self.network(batch).transpose(1, 2), batch, ignore_index=0)


class MovesFrozenParameter(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.zeros(CLASSES), requires_grad=False)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        outputs = self(batch[0])
        self.center.data.lerp_(outputs.detach().mean(dim=0), 0.1)
        return F.cross_entropy(outputs, batch[1])


class Masked(nn.Linear):
    """Its weights have the mask already, so writing it changes nothing before the first noisy step."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.register_buffer("mask", (torch.arange(FEATURES) > 1).float())
        self.weight.data *= self.mask

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data *= self.mask
        return super().forward(x)


class Remembers(Classifier):
    last: Any = 0.0

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        outputs = self(batch[0])
        before, self.last = self.last, outputs.detach().mean(dim=0)
        return F.cross_entropy(outputs + before, batch[1])


class ReentrantCheckpoint(Classifier):
    def __init__(self) -> None:
        super().__init__(nn.ModuleList([mlp(), nn.Linear(CLASSES, CLASSES)]))

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.network
        return last(checkpoint(first, x.requires_grad_(), use_reentrant=True))


def padded() -> Tensor:
    words = text()().clamp(min=1)
    for i, row in enumerate(words):
        row[: i % 4] = 0
    return words


MIXES = r"depends on the other records.*contrastive losses"
NORM = r"BatchNorm mixes them: network\.1\. Replace it by nn\.GroupNorm"
REFUSED: dict[str, tuple[Callable[[], LightningModule], str]] = {
    "sum": (lambda: loss(summed), r"summed over the batch\. .*reduction='mean'"),
    "sum in part": (
        lambda: loss(lambda z, y: F.cross_entropy(z, y) + 0.1 * z.square().sum()),
        r"not the mean of the gradients of its records.*Average every term",
    ),
    "BatchNorm": (lambda: Classifier(with_batch_norm()), NORM),
    "BatchNorm without running statistics": (
        lambda: Classifier(with_batch_norm(track_running_stats=False)).eval(),
        NORM,
    ),
    "contrastive": (lambda: loss(contrastive), MIXES),
    "MixUp": (lambda: loss(mixup), MIXES),
    "a little mixing": (lambda: loss(lambda z, y: F.cross_entropy(z, y) + 0.02 * contrastive(z, y)), MIXES),
    "a parameter is moved": (MovesFrozenParameter, "training_step changes center: .*without noise"),
    "a mask": (
        lambda: Classifier(Masked()),
        r"training_step changes network\.weight: .*compute with self\.weight \* self\.mask",
    ),
    "memory": (Remembers, "training_step carries state.*it sets last"),
    "squeeze": (
        lambda: loss(lambda z, y: F.cross_entropy(z.squeeze(), y)),
        r"works on a batch but not on a single record.*squeeze\(\)",
    ),
    "two records are different": (
        lambda: loss(lambda z, y: F.cross_entropy(z, y) * (1.0 if len(y) > 1 else 3.0)),
        "not the mean of the gradients of its records",
    ),
    "many records are different": (
        lambda: loss(lambda z, y: F.cross_entropy(z, y) * (1.0 if len(y) < 5 else 3.0)),
        "not the mean of the gradients of its records",
    ),
    "no loss": (lambda: loss(lambda z, y: None), "NoneType.*Return one number"),  # type: ignore[arg-type, return-value]
    "several losses": (lambda: loss(lambda z, y: torch.zeros(3)), r"shape \(3,\).*Return one number"),
    "nothing depends on weights": (lambda: loss(lambda z, y: 0.0 * z.sum()), "gradient of every record tried is zero"),
    # Without a parameter before it, autograd gives no gradient for what is checkpointed, and no error either.
    "reentrant checkpoint": (ReentrantCheckpoint, r"gradient_checkpointing_disable\(\).* use_reentrant=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_right_per_sample_gradients_is_refused_before_a_backend_is_tried(name: str) -> None:
    module, message = REFUSED[name]
    built = module()
    before = [p.clone() for p in built.parameters()]
    with pytest.raises(ConfigurationError, match=message):
        choose(built)
    assert all(torch.equal(p, values) for p, values in zip(built.parameters(), before, strict=True))


WEIGHTED = {"words": (OverWords, padded), "classes": (lambda: loss(class_weights), None)}


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("how", ["auto", "functional", "loop"])
def test_in_a_mean_over_words_or_by_class_a_record_counts_by_its_own_mean(name: str, how: str) -> None:
    module, batch = WEIGHTED[name]
    records = {} if batch is None else {"batch": batch()}
    assert choose(module(), how=how, **records).reason.endswith("(see docs/gradients.md)")
    with pytest.raises(ConfigurationError, match="hooks"):
        choose(module(), how="hooks", **records)


def test_running_statistics_are_refused_by_name_and_put_back() -> None:
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    network = nn.Sequential(nn.Linear(FEATURES, 8), nn.Unflatten(1, (2, 4)), norm, nn.Flatten(), nn.Linear(8, CLASSES))
    before = norm.running_mean.clone()
    with pytest.raises(ConfigurationError, match=r"training_step changes .*network\.2\.running_mean.*without noise"):
        # In training mode these statistics are written but not used, so the gradients themselves are right.
        choose(Classifier(network))
    assert torch.equal(norm.running_mean, before)


def test_one_public_record_is_too_few() -> None:
    with pytest.raises(ConfigurationError, match=r"records: 1\).*larger batch size for the auxiliary data"):
        choose(Classifier(), batch=batch_of(1))


@pytest.mark.parametrize("n", [2, 5])
def test_any_number_of_records_from_two_on_will_do(n: int) -> None:
    assert choose(Classifier(), batch=batch_of(n)).name == "functional"
    for mixing in (Classifier(with_batch_norm()), loss(contrastive)):
        with pytest.raises(ConfigurationError, match="depends on the other records"):
            choose(mixing, batch=batch_of(n))


def test_public_records_without_a_finite_gradient_are_left_out() -> None:
    x, y = batch_of()
    x[1] = torch.nan
    assert choose(Classifier(), batch=(x, y)).reason.endswith(f"checked on {RECORDS - 1} records")
    x[1:] = torch.inf
    with pytest.raises(ConfigurationError, match=f"Of {RECORDS} records {RECORDS - 1} have a gradient"):
        choose(Classifier(), batch=(x, y))


def numpy_noise(module: Any, batch: Any) -> Tensor:
    """Random in training mode in a way that torch does not see."""
    scale = 1 + module.training * np.random.rand(len(batch[0]), 1)
    return cross_entropy(module, (batch[0] * torch.as_tensor(scale, dtype=batch[0].dtype), batch[1]))


class SamplesAlways(Autoencoder):
    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        mean, log_std = self.encoder(batch[0]).chunk(2, dim=1)
        return (self.decoder(mean + log_std.exp() * torch.randn_like(mean)) - batch[0]).square().sum(dim=1).mean()


@pytest.mark.parametrize("module", [lambda: Steps(numpy_noise), SamplesAlways])
def test_random_losses_are_compared_with_the_same_random_numbers(module: Any) -> None:
    assert choose(module()).name == "functional"
    assert choose(module(), how="loop").name == "loop"


HIDDEN: list[Any] = []
"""Global: what a closure keeps is put back."""


def notes_its_output(logits: Tensor, y: Tensor) -> Tensor:
    hidden = torch.tanh(logits)  # keeps its output for the backward pass
    HIDDEN.append(weakref.ref(hidden))
    return F.cross_entropy(hidden, y)


@pytest.mark.parametrize("how", ["auto", "hooks"])
def test_checks_keep_no_graph_alive(how: str) -> None:
    """They repeat every epoch, and a graph that holds its own outputs through a hook is never collected."""
    HIDDEN.clear()
    choose(loss(notes_its_output), how)
    gc.collect()
    assert len(HIDDEN) > 10
    assert not any(hidden() is not None for hidden in HIDDEN)
