"""Metrics and values for logging do not keep a training step from being vectorised; anything else with them does."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torchmetrics import Accuracy, MeanMetric, MeanSquaredError, MetricCollection, Precision

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.loop import LoopGradients
from tests.gradients_zoo import CLASSES, ZOO, Classifier, batch_of, choose, loss_of


class Uses(Classifier):
    def __init__(self, use: Callable[[Any, Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        settings: dict[str, Any] = {"task": "multiclass", "num_classes": CLASSES}
        self.use, self.mean, self.accuracy = use, MeanMetric(), Accuracy(**settings)
        self.metrics = MetricCollection([Accuracy(**settings), Precision(**settings)])
        self.error = MeanSquaredError()
        self.register_buffer("scale", torch.tensor(2.0))
        self.seen: Any = None

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        logits = self(batch[0])
        loss = F.cross_entropy(logits, batch[1])
        other = self.use(self, logits, batch[1], loss)
        return other if isinstance(other, Tensor) and other.requires_grad else loss


def note(module: Uses, value: Any) -> None:
    module.seen = value


LOGGING: dict[str, Callable[..., Any]] = {
    "a metric is called": lambda m, z, y, loss: note(m, m.accuracy(z, y)),
    "a metric is updated and computed": lambda m, z, y, loss: (m.mean.update(loss), note(m, m.mean.compute())),
    "a collection": lambda m, z, y, loss: note(m, m.metrics(z, y)["MulticlassAccuracy"]),
    "item": lambda m, z, y, loss: note(m, loss.item()),
    "float": lambda m, z, y, loss: note(m, float(loss.detach())),
    "a count": lambda m, z, y, loss: note(m, (z.argmax(1) == y).sum().item() / len(y)),
    "perplexity": lambda m, z, y, loss: note(m, round(math.exp(loss.item()), 3)),
    "the value of a buffer": lambda m, z, y, loss: loss * m.scale.item(),
}
MORE: dict[str, Callable[..., Any]] = {
    "a metric is the loss": lambda m, z, y, loss: m.error(z, F.one_hot(y, CLASSES).float()),
    "a loss that is skipped where it is large": lambda m, z, y, loss: 0 * loss if loss.item() > 100 else loss,
    "a loss that is skipped where it is small": lambda m, z, y, loss: 0 * loss if float(loss) < 1e-3 else loss,
    "a coin": lambda m, z, y, loss: 2 * loss if torch.rand(()).item() < 0.5 else loss,
    "a random scale": lambda m, z, y, loss: loss * torch.rand(()).item(),
    "a branch": lambda m, z, y, loss: loss if loss > 0 else -loss,
}


@pytest.mark.parametrize("name", LOGGING)
def test_what_is_only_logged_is_stubbed_and_gradients_are_right(name: str) -> None:
    module, batch = Uses(LOGGING[name]), batch_of()
    backend = choose(module)
    assert backend.name == "functional"
    rows = backend(batch)
    assert module.accuracy.update_count == module.mean.update_count == 0
    torch.testing.assert_close(rows, LoopGradients(module, loss_of(module), backend.groups)(batch))
    module.accuracy(torch.randn(4, CLASSES), torch.arange(4) % CLASSES)
    assert module.accuracy.compute() >= 0, "metrics work as before"


@pytest.mark.parametrize("name", MORE)
def test_what_decides_on_the_loss_is_computed_record_by_record(name: str) -> None:
    assert choose(Uses(MORE[name])).name == "loop"


def test_recurrent_layers_are_as_they_were_and_the_fast_kernels_are_on() -> None:
    module, batch = ZOO["nn.LSTM"].build()
    FunctionalGradients(module, loss_of(module), ParameterGroups.from_module(module))(batch)
    copied: Any = copy.deepcopy(module)
    torch.testing.assert_close(copied.training_step(batch, 0), module.training_step(batch, 0))
    assert torch.backends.mkldnn.enabled
    assert torch.backends.cudnn.enabled


def test_numbers_that_fill_a_tensor_in_place_are_drawn_for_each_record():
    """64 copies of a record: one draw for all of them would keep or drop all."""
    module, (x, y) = ZOO["stochastic depth, `torch.empty(…).bernoulli_(p)`"].build()
    backend = choose(module, "functional", (x, y))
    kept = backend((x[:1].repeat(64, 1), y[:1].repeat(64))).norm(dim=1) > 0
    assert 12 <= int(kept.sum()) <= 52, "within five standard deviations of a half"


NORMS = {
    "LayerNorm": lambda: nn.LayerNorm(6),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "InstanceNorm": lambda: nn.InstanceNorm1d(4, affine=True),
    "BatchNorm": lambda: nn.BatchNorm1d(4).eval(),
}


@pytest.mark.parametrize("norm", NORMS)
def test_norms_after_layers_in_bfloat16_are_vectorised(norm):
    network = nn.Sequential(nn.Conv1d(2, 4, 3), NORMS[norm](), nn.Flatten(), nn.Linear(24, CLASSES))
    batch = torch.randn(5, 2, 8), torch.randint(CLASSES, (5,))

    def loss(batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(network(batch[0]), batch[1])

    kinds = FunctionalGradients, LoopGradients
    found, expected = (kind(network, loss, ParameterGroups.from_module(network))(batch) for kind in kinds)
    assert found.dtype == torch.float32
    assert (found - expected).norm(dim=1).max() <= 3e-2 * expected.norm(dim=1).max()
