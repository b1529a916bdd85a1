"""Which backend is chosen, what is said about it, and that choosing leaves no trace."""

from typing import Any

import pytest
from torch import Tensor

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend
from lightning_gep.gradients.choice import check_still_apart
from tests.gradients_zoo import ZOO, Classifier, loss_of


def choose(name: str, how: str = "auto") -> Any:
    module, batch = ZOO[name].build()
    return choose_backend(module, loss_of(module), ParameterGroups.from_module(module), batch, how)


@pytest.mark.parametrize(
    ("name", "chosen", "words"),
    [
        ("Linear", "functional", ["fastest", "checked on 6 public records"]),
        ("outputs collected in a list", "functional", ["fastest"]),
        ("strings in the batch", "loop", ["functional failed with GradientError", "not tensors"]),
        ("torchmetrics in training_step", "functional", ["fastest"]),
        (".item() in training_step", "functional", ["fastest"]),
        (
            "weights reached past the module tree",
            "loop",
            ["functional gave gradients that differ by", "network.0.weight"],
        ),
    ],
)
def test_the_reason_is_given_in_words(name: str, chosen: str, words: list[str]) -> None:
    gradients = choose(name)
    assert gradients.name == chosen
    assert gradients.reason.startswith(f"{chosen}: ")
    assert all(word in gradients.reason for word in words)


def test_a_backend_that_is_asked_for_is_taken_if_it_is_right() -> None:
    for how in ("functional", "hooks", "loop"):
        gradients = choose("Linear", how)
        assert gradients.name == how
        assert gradients.reason == f"{how}: asked for, checked on 6 public records"


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("L2 term in the loss", "hooks", r"gave gradients that differ by 0\.0\d+ of their size in network"),
        ("layers that see time first", "hooks", "would mix records"),
        ("branches on values", "functional", "failed with RuntimeError: vmap: "),
        ("parameters on the LightningModule", "hooks", "the parameter temperature is used outside"),
    ],
)
def test_a_backend_that_is_asked_for_and_wrong_is_refused(name: str, how: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"gradients='{how}' cannot be used .*{words}.*Use 'auto'"):
        choose(name, how)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"gradients='vmap' is not known\. Choose one of 'auto'"):
        choose("Linear", "vmap")


def test_an_error_of_the_users_own_is_passed_on() -> None:
    class Broken(Classifier):
        def training_step(self, batch: Any, batch_index: int) -> Tensor:
            raise KeyError("label")

    module = Broken()
    with pytest.raises(KeyError, match="label"):
        choose_backend(module, loss_of(module), ParameterGroups.from_module(module), ZOO["Linear"].build()[1])


def test_a_step_that_begins_to_decide_by_a_value_is_refused() -> None:
    """While it only logs the value, a stand-in changes nothing; later it would train another model."""
    module, batch = ZOO["Linear"].build()
    loss, later = loss_of(module), [False]

    def scaled(records: Any) -> Tensor:
        value = loss(records)
        seen = value.detach().item()
        return value * seen if later[0] else value

    chosen = choose_backend(module, scaled, ParameterGroups.from_module(module), batch)
    assert chosen.name == "functional"
    check_still_apart(chosen, batch)
    later[0] = True
    with pytest.raises(ConfigurationError, match=r"decides something by the value of a tensor.*Use 'loop'"):
        check_still_apart(chosen, batch)
