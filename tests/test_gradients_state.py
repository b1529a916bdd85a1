import pytest
import torch
from torch import Tensor, nn

from lightning_gep.gradients.state import escaped_tensors, evaluation_mode, parameters_kept, untouched


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("statistic", torch.zeros(3))
        self.register_buffer("empty", None)
        self.weight = nn.Parameter(torch.ones(2))
        self.part = nn.Sequential(nn.Dropout(), nn.Linear(2, 2))
        self.plain = torch.tensor([torch.nan, 1.0])
        self.outputs: dict[str, list[Tensor]] = {"train": []}
        self.outputs["itself"] = self.outputs  # type: ignore[assignment]
        self.seen = {1}
        self.count = 0


def test_everything_but_parameters_is_put_back() -> None:
    module = Holder()
    plain, outputs, statistic = module.plain, module.outputs, module.statistic
    with untouched(module):
        module.statistic = torch.ones(4)
        statistic.fill_(7.0)
        module.plain.add_(1.0)
        module.outputs["train"].append(torch.ones(1))
        module.outputs["test"] = []
        module.seen.add(2)
        module.count = 5
        module.extra = torch.ones(1)
        module.part[0].eval()
    assert module.statistic is statistic
    assert not statistic.any()
    assert module.plain is plain
    assert plain.isnan().tolist() == [True, False]
    assert plain[1] == 1.0
    assert module.outputs is outputs
    assert outputs["train"] == []
    assert set(outputs) == {"train", "itself"}
    assert module.seen == {1}
    assert module.count == 0
    assert not hasattr(module, "extra")
    assert module.part[0].training


def fail(module: Holder) -> None:
    with untouched(module), parameters_kept(module), evaluation_mode(module):
        module.count = 5
        module.weight.data.zero_()
        raise RuntimeError


def test_also_after_an_error() -> None:
    module = Holder()
    with pytest.raises(RuntimeError):
        fail(module)
    assert module.count == 0
    assert module.training
    assert module.weight.tolist() == [1.0, 1.0]


def test_each_part_goes_back_to_its_own_mode() -> None:
    module = Holder()
    module.part[1].eval()
    with evaluation_mode(module):
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.modules()] == [True, True, True, False]


def test_tensors_that_outlive_their_transform_are_found() -> None:
    module = Holder()

    def keep(x: Tensor) -> Tensor:
        module.outputs["train"].append(x)
        module.part.last = x * 2  # type: ignore[assignment]
        module.plain = torch.ones(3)
        return x.sum()

    assert escaped_tensors(module) == []
    torch.func.vmap(torch.func.grad(keep))(torch.ones(2, 3))
    assert escaped_tensors(module) == ["outputs", "part.last"]
