from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.state import in_mode, state_unchanged, untouched


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("statistic", torch.zeros(3))
        self.register_buffer("empty", None)
        self.register_buffer("unsaved", torch.tensor([torch.nan, 1.0]), persistent=False)
        self.weight = nn.Parameter(torch.ones(2))
        self.part = nn.Sequential(nn.Dropout(), nn.Linear(2, 2).requires_grad_(False))
        self.outputs = []
        self.count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def fail(module):
    with untouched(module), in_mode(module, training=False):
        module.count = 5
        module.weight.data.zero_()
        assert not any(part.training for part in module.modules())
        raise RuntimeError


def test_attributes_modes_and_parameters_are_put_back_also_after_an_error():
    module = Holder()
    module.part[1].eval()
    with pytest.raises(RuntimeError):
        fail(module)
    assert module.count == 0
    assert [part.training for part in module.modules()] == [True, True, True, False]
    assert module.weight.tolist() == [1.0, 1.0]


def values(module: nn.Module) -> dict[str, list[float]]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().nan_to_num(-1.0).reshape(-1).tolist() for name, tensor in tensors}


def test_a_state_that_stays_is_unchanged_with_nan_in_it() -> None:
    module = Holder()
    with state_unchanged(module):
        module.outputs.append(torch.ones(1))
        module.unsaved.add_(0.0)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda module: module.unsaved.data.fill_(2.0), "unsaved"),
        (lambda module: module.part[1].bias.data.add_(1.0), r"part\.1\.bias"),
        (lambda module: setattr(module.statistic, "data", torch.ones(5)), "statistic"),
        (lambda module: setattr(module, "statistic", torch.ones(4)), "statistic"),
        (lambda module: module.register_buffer("new", torch.ones(1)), "new"),
        (lambda module: module.part.append(nn.Linear(1, 1, bias=False)), r"part\.2\.weight"),
    ],
)
def test_what_is_written_is_refused_and_put_back(change: Callable[[nn.Module], None], name: str) -> None:
    module = Holder()
    before = values(module)
    message = f"training_step changes {name}: .* released without noise"
    with pytest.raises(ConfigurationError, match=message), untouched(module), state_unchanged(module):
        change(module)
    assert values(module) == before


def test_extra_state_that_is_written_is_refused() -> None:
    module = Holder()
    with pytest.raises(ConfigurationError, match="training_step changes _extra_state: "), state_unchanged(module):
        module.count += 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_is_written_before_another_error_is_put_back(error: type[BaseException]) -> None:
    module = Holder()
    before = values(module)

    def write_and_fail() -> None:
        module.statistic.data.add_(1.0)
        module.weight.data.add_(1.0)
        raise error("of the user")

    with pytest.raises(error, match="of the user"), state_unchanged(module):
        write_and_fail()
    assert values(module) == before


def test_a_generator_that_is_dropped_puts_nothing_back() -> None:
    """It may be closed long after an error, when the module has been trained on."""
    module = Holder()

    def microbatches() -> Iterator[int]:
        with state_unchanged(module):
            yield 1
            yield 2

    begun = microbatches()
    next(begun)
    module.weight.data.add_(1.0)
    begun.close()
    assert module.weight.tolist() == [2.0, 2.0]
