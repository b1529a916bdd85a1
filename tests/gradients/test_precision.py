from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightning_gep.gradients.precision import HALF_TOLERANCE, doubled, tolerance_of, widened


class Holder(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, dtype=dtype)
        self.tied = self.layer.weight
        self.register_buffer("scale", torch.ones(2, dtype=dtype))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.long))
        self.weights = torch.ones(2, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_doubled_module_is_the_same_module_in_float64(dtype: torch.dtype) -> None:
    module = Holder(dtype)
    weight, storage, scale = module.layer.weight, module.layer.weight.data_ptr(), module.scale
    gradient = weight.grad = torch.ones_like(weight)
    with doubled(module):
        assert {t.dtype for t in (module.layer.weight, module.layer.bias, module.scale, module.weights)} == {
            torch.float64
        }
        assert module.layer.weight is weight is module.tied
        assert module.steps.dtype == torch.long
    assert {t.dtype for t in (module.layer.weight, module.layer.bias, module.scale, module.weights)} == {dtype}
    assert weight.data_ptr() == storage
    assert weight.grad is gradient
    assert module.scale is scale


CODE: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "float": lambda x: x.float(),
    "bfloat16": lambda x: x.bfloat16(),
    "to": lambda x: x.to(torch.float32),
    "to, by name": lambda x: x.to(dtype=torch.float16),
    "zeros": lambda x: x + torch.zeros(2),
    "ones, with a dtype": lambda x: x * torch.ones(2, dtype=torch.float32),
    "labels": lambda x: (x > 0).float(),
    "autocast": lambda x: torch.autocast("cpu", dtype=torch.bfloat16)(torch.nn.functional.linear)(x, x),
}


@pytest.mark.parametrize("name", CODE)
def test_a_widened_loss_stays_in_float64(name: str) -> None:
    seen: set[torch.dtype] = set()

    def loss(batch: dict[str, Tensor]) -> Tensor:
        result = CODE[name](batch["x"])
        seen.add(result.dtype)
        return result

    widened(loss)({"x": torch.ones(3, 2)})
    assert seen == {torch.float64}
    assert torch.get_default_dtype() == torch.float32


def test_whole_numbers_stay_whole() -> None:
    assert widened(lambda batch: batch)(torch.arange(3)).dtype == torch.long
    assert widened(lambda batch: batch.to(torch.int32))(torch.ones(3)).dtype == torch.int32


def in_half(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.nn.functional.linear(x, x).float().sum()


@pytest.mark.parametrize(
    ("dtype", "loss", "least", "most"),
    [
        (torch.float64, torch.sum, 0.0, 1e-6),
        (torch.float32, torch.sum, 1e-6, 1e-3),
        (torch.bfloat16, torch.sum, HALF_TOLERANCE, HALF_TOLERANCE),
        (torch.float32, in_half, HALF_TOLERANCE, HALF_TOLERANCE),
        (torch.float64, lambda x: x.float().sum(), 1e-6, 1e-3),
    ],
)
def test_the_coarsest_dtype_on_the_way_decides(
    dtype: torch.dtype, loss: Callable[[Tensor], Tensor], least: float, most: float
) -> None:
    assert least <= tolerance_of(Holder(dtype), loss, torch.ones(3, 2, dtype=dtype)) <= most
