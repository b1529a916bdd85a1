"""Hooks see a whole chunk at once: what would let records meet in it is refused, and nothing of Opacus is left."""

import importlib.util
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import GradientError
from lightning_gep.gradients.choice import check_still_apart
from lightning_gep.gradients.hooks import HookedGradients
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.randomness import HostStates
from tests.gradients.test_backends import bound
from tests.gradients_zoo import FEATURES, Classifier, MixedPrecision, batch_of, choose, mlp


class Changes(Classifier):
    """Changes its inputs in some way."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change
        self.held, self.generator = [random.Random(3)], torch.Generator().manual_seed(3)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        return F.cross_entropy(self(self.change(self, batch[0])), batch[1])


SHARED = {
    "random": lambda _, x: x * random.random(),
    "numpy.random": lambda _, x: x * np.random.rand(),
    "a generator of Python in a list": lambda module, x: x * module.held[0].random(),
    "one number": lambda _, x: x * torch.rand(()),
    "a coin": lambda _, x: x * float(torch.rand(()) < 0.5),
    "a mask for all": lambda _, x: x * torch.rand(FEATURES),
    "a mask for all, from a generator": lambda module, x: x * torch.rand(FEATURES, generator=module.generator),
    "a permutation of features": lambda _, x: x[:, torch.randperm(FEATURES)],
}
OWN = {
    "a number": lambda _, x: x * torch.rand(len(x), 1),
    "dropout": lambda _, x: F.dropout(x),
    "a mask, time first": lambda _, x: F.dropout(x.T).T,
    "a mask, from a generator": lambda module, x: x * torch.rand(x.shape, generator=module.generator),
}


class RandomInTraining(Changes):
    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(self.change(self, x) if self.training else x), y)


@pytest.mark.parametrize("draw", OWN)
def test_random_numbers_for_each_record_are_fine(draw: str) -> None:
    chosen = choose(RandomInTraining(OWN[draw]), "hooks")
    check_still_apart(chosen, batch_of())
    x, y = batch_of(1)
    rows = chosen((x.repeat(8, 1), y.repeat(8)))
    assert len({tuple(row) for row in rows.tolist()}) == 8


@pytest.mark.parametrize("draw", SHARED)
def test_random_numbers_that_records_would_share_are_refused_also_when_it_begins_later(draw: str) -> None:
    with pytest.raises(ConfigurationError, match="hooks would share random numbers among records"):
        choose(Changes(SHARED[draw]), "hooks")
    module = Changes(lambda _, x: x)
    chosen = choose(module, "hooks")
    module.change = SHARED[draw]
    with pytest.raises(ConfigurationError, match="cannot be used any more: hooks would share"):
        check_still_apart(chosen, batch_of())
    with pytest.raises(GradientError, match="hooks would share random numbers"):
        chosen(batch_of(4), chunk_size=4, begin_with=HostStates(module.held))


def pairs(x: Tensor) -> Tensor:
    return x + x[torch.randperm(len(x))]


MIXING = {
    "neighbours": lambda _, x: x + x.roll(1, 0),
    "centred": lambda _, x: x - x.mean(0),
    "pairs": lambda _, x: pairs(x),
    "pairs, by a coin": lambda _, x: pairs(x) if torch.rand(len(x))[0].item() < 0.5 else x,
}


@pytest.mark.parametrize("mix", MIXING)
def test_mixing_records_is_refused_also_when_it_begins_later(mix: str) -> None:
    with pytest.raises(ConfigurationError, match=r"depends on the other records|hooks would mix records"):
        choose(Changes(MIXING[mix]), "hooks")
    module = Changes(lambda _, x: x)
    chosen = choose(module, "hooks")
    module.change = MIXING[mix]
    with pytest.raises(ConfigurationError, match="hooks would mix records: replacing one changes"):
        check_still_apart(chosen, batch_of())


class PenalisedInTraining(Classifier):
    """A random loss with a term outside the layers that exists in training mode only."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Dropout(0.3), mlp()))

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        penalty = sum(p.square().sum() for p in self.parameters()) if self.training else 0.0
        return super().training_step(batch, batch_index) + 0.01 * penalty


class PenalisedInHalf(MixedPrecision):
    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        penalty = sum(p.square().sum() for p in self.parameters())
        return super().training_step(batch, batch_index) + penalty


@pytest.mark.parametrize("module", [PenalisedInTraining, PenalisedInHalf])
def test_a_term_that_hooks_would_drop_is_seen(module: type[Classifier]) -> None:
    with pytest.raises(ConfigurationError, match="hooks gave gradients that differ"):
        choose(module(), "hooks")
    assert choose(module()).name == "functional"


@pytest.mark.parametrize(
    ("ignored", "loss"),
    [
        (-100, F.cross_entropy),
        (2, nn.CrossEntropyLoss(ignore_index=2)),
        (-100, lambda logits, target: F.nll_loss(logits.log_softmax(1), target)),
    ],
)
def test_a_mean_over_some_targets_is_not_taken_for_one_over_all(ignored: int, loss: Any) -> None:
    net = mlp()
    groups, (x, y) = ParameterGroups.from_module(net), batch_of()
    y[y == ignored] = 0
    hooks, loop = (
        way(net, lambda batch: loss(net(batch[0]), batch[1]), groups) for way in (HookedGradients, LoopGradients)
    )
    torch.testing.assert_close(hooks((x, y)), loop((x, y)))
    y[0] = ignored
    with pytest.raises(GradientError, match=rf"ignores some targets \(ignore_index={ignored}\)"):
        hooks((x, y))
    summed = HookedGradients(
        net, lambda batch: F.cross_entropy(net(x), y, ignore_index=ignored, reduction="sum"), groups
    )
    assert not summed((x, y))[0].any(), "a sum may ignore some"


def test_rows_that_do_not_belong_to_records_are_refused() -> None:
    """A layer that sees records and positions in one dimension has more rows than there are records."""
    module = Classifier(nn.Sequential(nn.Flatten(0, 1), mlp(), nn.Unflatten(0, (-1, 2)), nn.Flatten(1)))
    with pytest.raises(GradientError, match="saw 6 rows for a batch of 3 records"):
        bound(HookedGradients, module)((torch.randn(3, 2, FEATURES), torch.tensor([0, 1, 2])))


def test_without_opacus_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"gradients='hooks' needs .*pip install 'lightning-gep\[hooks\]'"):
        choose(Classifier(), "hooks")
