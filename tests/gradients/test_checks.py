"""Losses that have no right per-sample gradients are refused, each with what is wrong and what to do."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend
from lightning_gep.gradients.checks import check_loss, fault_of
from lightning_gep.gradients.comparison import disagreement
from lightning_gep.gradients.interface import Backend
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.reference import Probe
from tests.gradients_zoo import (
    CLASSES,
    FEATURES,
    ZOO,
    Autoencoder,
    Classifier,
    MixedPrecision,
    Penalised,
    loss_of,
    mlp,
    text,
)
from tests.gradients_zoo import N as RECORDS

EVERY_WAY = ("auto", "functional", "hooks", "loop")


def batch_of(n: int = RECORDS) -> tuple[Tensor, Tensor]:
    return torch.randn(n, FEATURES), torch.randint(CLASSES, (n,))


def choose(module: LightningModule, batch: Any = None, how: str = "auto") -> Any:
    groups = ParameterGroups.from_module(module)
    return choose_backend(module, loss_of(module), groups, batch_of() if batch is None else batch, how)


def loss(function: Callable[[Tensor, Tensor], Tensor], network: nn.Module | None = None) -> LightningModule:
    """A module whose loss is a function of the network's outputs and the labels."""

    class Custom(Classifier):
        def training_step(self, batch: Any, batch_index: int) -> Tensor:
            return function(self(batch[0]), batch[1])

    return Custom(network)


def with_batch_norm(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 7), nn.BatchNorm1d(7), *more, nn.Tanh(), nn.Linear(7, CLASSES))


def contrastive(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z @ z.T, torch.arange(len(z)))


def mixup(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(0.7 * logits + 0.3 * logits[torch.randperm(len(y))], y)


def class_weights(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, weight=torch.tensor([1.0, 2.0, 5.0]))


class OverWords(LightningModule):
    """The mean runs over the words of all records, of which some have more than others."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        return F.cross_entropy(self.network(batch).transpose(1, 2), batch, ignore_index=0)


class MixedBatchNorm(MixedPrecision):
    def __init__(self) -> None:
        super().__init__(with_batch_norm())


def padded() -> Tensor:
    words = text()().clamp(min=1)
    for i, row in enumerate(words):
        row[: i % 4] = 0
    return words


@pytest.mark.parametrize("how", EVERY_WAY)
def test_a_summed_loss_is_refused(how: str) -> None:
    summed = loss(lambda logits, y: F.cross_entropy(logits, y, reduction="sum"))
    with pytest.raises(ConfigurationError, match=r"summed over the batch\. .*reduction='mean'"):
        choose(summed, how=how)


def test_a_loss_that_is_summed_in_part_is_refused() -> None:
    partly = loss(lambda logits, y: F.cross_entropy(logits, y) + 0.01 * logits.square().sum())
    with pytest.raises(ConfigurationError, match=r"not a mean over the records.*Average every term"):
        choose(partly)


@pytest.mark.parametrize("how", EVERY_WAY)
def test_batch_norm_in_training_mode_is_refused_by_name(how: str) -> None:
    with pytest.raises(ConfigurationError, match=r"BatchNorm mixes them: network\.1\. Replace it by nn\.GroupNorm"):
        choose(Classifier(with_batch_norm()), how=how)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda: Classifier(with_batch_norm(nn.Dropout(0.5))), id="with dropout"),
        pytest.param(MixedBatchNorm, id="in bf16"),
    ],
)
def test_batch_norm_is_seen_through_randomness_and_rounding(module: Callable[[], LightningModule]) -> None:
    with pytest.raises(ConfigurationError, match="BatchNorm mixes"):
        choose(module())


def test_batch_norm_without_running_statistics_mixes_in_evaluation_mode_too() -> None:
    norm = nn.BatchNorm1d(7, track_running_stats=False).eval()
    with pytest.raises(ConfigurationError, match="BatchNorm mixes"):
        choose(Classifier(nn.Sequential(nn.Linear(FEATURES, 7), norm, nn.Linear(7, CLASSES))))


@pytest.mark.parametrize("how", EVERY_WAY)
@pytest.mark.parametrize("function", [contrastive, mixup, class_weights])
def test_losses_that_mix_records_are_refused(function: Callable[[Tensor, Tensor], Tensor], how: str) -> None:
    with pytest.raises(ConfigurationError, match=r"depends on the other records.*Records must not mix"):
        choose(loss(function), how=how)


def test_a_mean_over_words_of_all_records_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="average within each record first"):
        choose(OverWords(), padded())


def test_a_small_share_of_mixing_is_seen() -> None:
    with pytest.raises(ConfigurationError, match="depends on the other records"):
        choose(loss(lambda z, y: F.cross_entropy(z, y) + 1e-3 * contrastive(z, y)))


@pytest.mark.parametrize("how", EVERY_WAY)
def test_running_statistics_are_refused_by_name(how: str) -> None:
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    network = nn.Sequential(nn.Linear(FEATURES, 8), nn.Unflatten(1, (2, 4)), norm, nn.Flatten(), nn.Linear(8, CLASSES))
    before = norm.running_mean.clone()
    with pytest.raises(
        ConfigurationError,
        match=r"training_step changes .*network\.2\.running_mean.*without noise.*track_running_stats",
    ):
        # In training mode these statistics are written but not used, so the gradients themselves are in order.
        choose(Classifier(network), how=how)
    assert torch.equal(norm.running_mean, before)


class MovesFrozenParameter(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.zeros(CLASSES), requires_grad=False)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        outputs = self(batch[0])
        self.center.data.lerp_(outputs.detach().mean(dim=0), 0.1)
        return F.cross_entropy(outputs, batch[1])


def test_a_parameter_that_the_training_step_moves_is_refused_and_put_back() -> None:
    module = MovesFrozenParameter()
    with pytest.raises(ConfigurationError, match="training_step changes center"):
        choose(module)
    assert not module.center.any()


class Remembers(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        outputs = self(batch[0])
        before = 0.0 if self.last is None else self.last
        self.last = outputs.detach().mean(dim=0)
        return F.cross_entropy(outputs + before, batch[1])


def test_a_training_step_that_remembers_earlier_batches_is_refused() -> None:
    module = Remembers()
    with pytest.raises(ConfigurationError, match=r"training_step remembers.*it sets last"):
        choose(module)
    assert module.last is None


class Squeezes(Classifier):
    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        return F.cross_entropy(self(batch[0]).squeeze(), batch[1])


def test_a_training_step_that_fails_on_one_record_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"works on a batch but not on a single record.*squeeze\(\)"):
        choose(Squeezes())


def test_a_training_step_that_treats_one_record_differently_is_refused() -> None:
    differs = loss(lambda z, y: F.cross_entropy(z, y) * (1.0 if len(y) > 1 else 3.0))
    with pytest.raises(ConfigurationError, match="not a mean over the records"):
        choose(differs)
    differs = loss(lambda z, y: F.cross_entropy(z, y) * (1.0 if len(y) < 5 else 3.0))
    with pytest.raises(ConfigurationError, match="not the mean of the gradients of its records"):
        choose(differs)


@pytest.mark.parametrize(("value", "message"), [(None, "NoneType"), (torch.zeros(3), r"shape \(3,\)")])
def test_a_loss_that_is_not_one_number_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{message}.*Return one number"):
        choose(loss(lambda logits, y: value))


def test_a_loss_that_depends_on_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="The gradient of every public record is zero"):
        choose(loss(lambda logits, y: 0.0 * logits.sum()))


def test_one_public_record_is_too_few() -> None:
    with pytest.raises(ConfigurationError, match=r"1 record;.*larger batch size for the auxiliary data"):
        choose(Classifier(), batch_of(1))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 40])
def test_any_number_of_records_from_two_on_will_do(n: int) -> None:
    assert choose(Classifier(), batch_of(n)).name == "functional"
    with pytest.raises(ConfigurationError, match="BatchNorm mixes"):
        choose(Classifier(with_batch_norm()), batch_of(n))
    with pytest.raises(ConfigurationError, match="depends on the other records"):
        choose(loss(contrastive), batch_of(n))


def test_public_records_without_a_finite_gradient_are_left_out() -> None:
    x, y = batch_of()
    x[1] = torch.nan
    assert choose(Classifier(), (x, y)).reason.endswith(f"checked on {RECORDS - 1} public records")
    x[1:] = torch.inf
    with pytest.raises(ConfigurationError, match=f"Of {RECORDS} public records {RECORDS - 1} have a gradient"):
        choose(Classifier(), (x, y))


class ReentrantCheckpoint(Classifier):
    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__(nn.ModuleList([first, mlp(), last]))

    def forward(self, x: Tensor) -> Tensor:
        first, middle, last = self.network
        start = first(x)
        return last(checkpoint(middle, start if start.requires_grad else start.requires_grad_(), use_reentrant=True))


@pytest.mark.parametrize("first", [nn.Identity(), nn.Linear(FEATURES, FEATURES)], ids=["silent", "loud"])
@pytest.mark.parametrize("how", EVERY_WAY)
def test_the_form_of_checkpointing_that_cannot_work_is_named(how: str, first: nn.Module) -> None:
    """Without a parameter before it, autograd gives no gradient for what is checkpointed, and no error either."""
    module = ReentrantCheckpoint(first, nn.Linear(CLASSES, CLASSES))
    with pytest.raises(ConfigurationError, match="use_reentrant=False"):
        choose(module, how=how)


class PenalisedInTraining(Penalised):
    """A random loss with a term outside the layers that exists in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.network.insert(0, nn.Dropout(0.3))

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        step = super().training_step if self.training else Classifier.training_step.__get__(self)
        return step(batch, batch_index)


def test_dropout_does_not_hide_a_term_that_hooks_would_drop() -> None:
    with pytest.raises(ConfigurationError, match="hooks gave gradients that differ"):
        choose(PenalisedInTraining(), how="hooks")
    assert choose(PenalisedInTraining()).name == "functional"


class NumpyNoise(Classifier):
    """Random in training mode in a way that torch does not see."""

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        x, y = batch
        scale = 1 + np.random.rand(len(x), 1) if self.training else np.ones((len(x), 1))
        return F.cross_entropy(self(x * torch.as_tensor(scale, dtype=x.dtype)), y)


def test_a_loss_that_stands_still_in_evaluation_mode_only_is_compared_there() -> None:
    assert choose(NumpyNoise()).name == "functional"
    with pytest.raises(ConfigurationError, match="hooks cannot be checked, since the loss is random in training mode"):
        choose(NumpyNoise(), how="hooks")


class SamplesAlways(Autoencoder):
    def sample(self, mean: Tensor, std: Tensor) -> Tensor:
        return mean + std * torch.randn_like(std)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        mean, log_std = self.encoder(batch[0]).chunk(2, dim=1)
        return (self.decoder(self.sample(mean, log_std.exp())) - batch[0]).square().sum(dim=1).mean()


class SamplesFromADistribution(SamplesAlways):
    def sample(self, mean: Tensor, std: Tensor) -> Tensor:
        return torch.distributions.Normal(mean, std).rsample()


@pytest.mark.parametrize("how", ["functional", "hooks", "loop"])
def test_losses_that_sample_in_every_mode_can_be_checked(how: str) -> None:
    assert choose(SamplesAlways(), how=how).name == how


@pytest.mark.parametrize("how", ["auto", "hooks", "loop"])
def test_distributions_can_be_sampled(how: str) -> None:
    assert choose(SamplesFromADistribution(), how=how).name in ("functional", "hooks", how)


class NeedsSinglePrecision(Classifier):
    """Code that does not run in double precision: the checks make do with single."""

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        assert batch[0].dtype == torch.float32
        return super().training_step(batch, batch_index)


class NeedsSinglePrecisionAndIsPenalised(Penalised):
    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        assert batch[0].dtype == torch.float32
        return super().training_step(batch, batch_index)


def test_modules_that_insist_on_a_dtype_are_checked_in_it() -> None:
    assert choose(NeedsSinglePrecision()).name == "functional"
    with pytest.raises(ConfigurationError, match="hooks gave gradients that differ"):
        choose(NeedsSinglePrecisionAndIsPenalised(), how="hooks")


class PenalisedInHalf(MixedPrecision):
    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            penalty = sum(p.square().sum() for p in self.parameters())
            return Classifier.training_step(self, batch, batch_index) + 1e-4 * penalty


def test_a_dropped_term_smaller_than_the_rounding_is_seen_all_the_same() -> None:
    with pytest.raises(ConfigurationError, match="hooks gave gradients that differ"):
        choose(PenalisedInHalf(), how="hooks")
    assert choose(PenalisedInHalf()).name == "functional"


def test_a_rounding_error_is_not_taken_for_a_fault() -> None:
    """The loss magnifies rounding errors beyond what single precision forgives; double precision decides."""
    network = nn.Sequential(nn.Linear(FEATURES, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1))
    module = loss(lambda z, y: torch.sin(3e4 * z).mean(), network)
    probe = Probe(module, loss_of(module), ParameterGroups.from_module(module))
    batch = batch_of(6)
    in_single = disagreement(probe.gradient(batch)[None], probe.rows(batch).mean(dim=0)[None], probe.groups, 1e-4)
    assert in_single is not None, "single precision alone would refuse it"
    for how in ("functional", "hooks", "loop"):
        assert choose(module, batch, how).name == how


def into(out: Tensor | None, rows: Tensor) -> Tensor:
    return rows if out is None else out.copy_(rows)


class InDoubleOnly(LoopGradients):
    """Right in double precision and wrong in any other."""

    def rows(self, batch: Any, size: int, out: Tensor | None = None) -> Tensor:
        rows = super().rows(batch, size)
        return into(out, rows if rows.dtype == torch.float64 else torch.zeros_like(rows))


class Imprecise(LoopGradients):
    """Errors in single precision as rounding can make them, none in double precision."""

    def rows(self, batch: Any, size: int, out: Tensor | None = None) -> Tensor:
        rows = super().rows(batch, size)
        return into(out, rows if rows.dtype == torch.float64 else rows * 1.01)


class Stale(LoopGradients):
    """Right on the first batch, which it never forgets."""

    def rows(self, batch: Any, size: int, out: Tensor | None = None) -> Tensor:
        if not hasattr(self, "first"):
            self.first = super().rows(batch, size)
        return into(out, self.first[:size])


class WithoutRandomness(LoopGradients):
    """Fails once dropout is on."""

    def rows(self, batch: Any, size: int, out: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            if not torch.equal(self.loss_function(batch), self.loss_function(batch)):
                raise NotImplementedError("dropout")
        return super().rows(batch, size, out)


@pytest.mark.parametrize(
    ("backend", "name", "fault"),
    [
        (LoopGradients, "bf16-mixed", None),
        (InDoubleOnly, "bf16-mixed", "gave gradients that differ"),
        (InDoubleOnly, "Linear", "gave gradients that differ"),
        (Imprecise, "Linear", None),
        (Imprecise, "bf16-mixed", None),
        (Stale, "Linear", "gave gradients that differ"),
        (WithoutRandomness, "Linear", None),
        (WithoutRandomness, "Dropout", "failed with NotImplementedError: dropout"),
    ],
)
def test_the_faults_of_backends(backend: type[Backend], name: str, fault: str | None) -> None:
    module, batch = ZOO[name].build()
    reference = check_loss(module, loss_of(module), ParameterGroups.from_module(module), batch)
    found = fault_of(backend, reference)
    assert found is None if fault is None else found is not None and found.startswith(fault)


class MixesByACoin(Classifier):
    """A MixUp that a coin decides on; `.item()` keeps vmap away from it."""

    def __init__(self, throw: Callable[[], float], often: float) -> None:
        super().__init__()
        self.throw, self.often = throw, often

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x + x.roll(1, 0) if self.throw() < self.often else x), y)
        loss.item()
        return loss


@pytest.mark.parametrize(
    ("throw", "often"),
    [
        (lambda: torch.rand(1).item(), 0.3),
        (lambda: torch.rand(1).item(), 1e-4),
        (lambda: 1 - torch.rand(1).item(), 1e-4),
        (np.random.rand, 0.3),
        (random.random, 0.3),
    ],
)
def test_a_mixing_that_a_coin_decides_on_keeps_the_hooks_away(throw: Callable[[], float], often: float) -> None:
    with pytest.raises(ConfigurationError, match=r"would mix records|depends on the other records"):
        choose(MixesByACoin(throw, often), how="hooks")


def test_a_record_that_is_alone_has_none_to_mix_with() -> None:
    assert choose(MixesByACoin(lambda: torch.rand(1).item(), 1e-4)).name == "loop"
