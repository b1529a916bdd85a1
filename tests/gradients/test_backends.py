"""What the three backends have in common: what they leave behind, and what they do at the edges."""

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients import GradientError, take
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.hooks import HookedGradients
from lightning_gep.gradients.interface import Backend
from lightning_gep.gradients.loop import LoopGradients
from tests.gradients_zoo import FEATURES, ZOO, Classifier, Steps, loss_of

BACKENDS = [FunctionalGradients, HookedGradients, LoopGradients]
every_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)


def bound(backend: type[Backend], module: LightningModule) -> Backend:
    return backend(module, loss_of(module), ParameterGroups.from_module(module))


def fingerprint(module: nn.Module) -> Any:
    """All that must not change: values, gradients, hooks, modes, and the names of the attributes."""
    return {
        "values": {name: tensor.clone().tolist() for name, tensor in module.state_dict().items()},
        "gradients": {name: (id(p.grad), p.requires_grad, sorted(vars(p))) for name, p in module.named_parameters()},
        "parts": {
            name: (part.training, sorted(vars(part)), len(part._forward_hooks), len(part._backward_hooks))
            for name, part in module.named_modules()
        },
        "kinds": {name: part._is_full_backward_hook for name, part in module.named_modules()},
        "inplace": {name: getattr(part, "inplace", None) for name, part in module.named_modules()},
    }


@every_backend
@pytest.mark.parametrize(
    "name",
    ["in-place ReLU", "tied weights", "a layer with two names", "frozen parameters", "frozen BatchNorm", "nn.LSTM"],
)
def test_the_module_is_left_as_it_was(backend: type[Backend], name: str) -> None:
    module, batch = ZOO[name].build()
    next(p for p in module.parameters() if p.requires_grad).grad = None
    for p in list(module.parameters())[1:]:
        p.grad = torch.ones_like(p)
    before = fingerprint(module)
    try:
        bound(backend, module)(batch)
    except (GradientError, RuntimeError):
        assert backend is HookedGradients, "only hooks cannot do one of these; a failure leaves no trace either"
    assert fingerprint(module) == before
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    assert all(bool((gradient == 1).all()) for gradient in gradients)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_empty_batch_gives_no_rows_and_does_not_reach_the_users_code(
    backend: type[Backend], dtype: torch.dtype
) -> None:
    def never(batch: Any) -> Tensor:
        raise AssertionError("called")

    module = Classifier().to(dtype)
    groups = ParameterGroups.from_module(module)
    rows = backend(module, never, groups)((torch.zeros(0, FEATURES), torch.zeros(0, dtype=torch.long)))
    assert rows.shape == (0, groups.num_parameters)
    assert rows.dtype == torch.promote_types(dtype, torch.float32)


@every_backend
def test_columns_are_in_the_order_of_the_groups(backend: type[Backend]) -> None:
    module, batch = ZOO["Linear"].build()
    groups = ParameterGroups.from_module(module, {"last": "network.2.*", "rest": "*"})
    gradients = backend(module, loss_of(module), groups)
    rows = gradients(batch)
    with torch.no_grad():
        assert torch.allclose(gradients(take(batch, [2])), rows[2:3], atol=1e-6), "one record is a batch, too"
    loss_of(module)(batch).backward()
    assert torch.allclose(rows.mean(dim=0)[: 3 * 7], module.network[2].weight.grad.flatten(), atol=1e-6)
    assert torch.allclose(rows.mean(dim=0)[-7:], module.network[0].bias.grad, atol=1e-6)


@every_backend
def test_a_record_that_does_not_matter_has_a_zero_gradient(backend: type[Backend]) -> None:
    module = Steps(lambda m, b: (F.cross_entropy(m(b[0]), b[1], reduction="none") * (b[1] > 0)).mean())
    rows = bound(backend, module)((torch.randn(3, FEATURES), torch.tensor([0, 1, 0])))
    assert rows.any(dim=1).tolist() == [False, True, False]


@every_backend
def test_dropout_is_drawn_anew_for_every_record_and_call(backend: type[Backend]) -> None:
    """The gradient of record i is its dropout mask: 0 or 1/(1 − p)."""
    network, batch = nn.Sequential(nn.Dropout(0.25), nn.Linear(400, 1, bias=False)), torch.ones(3, 400)
    gradients = backend(network, lambda batch: network(batch).mean(), ParameterGroups.from_module(network))
    first, second = gradients(batch), gradients(batch)
    kept = first > 0
    assert torch.allclose(first[kept], torch.tensor(4 / 3))
    assert abs(kept.float().mean() - 0.75) < 0.06
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert not torch.equal(first, second)
