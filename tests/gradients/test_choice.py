"""Which backend is chosen, what is said about it, and that choosing leaves no trace."""

import re
from typing import Any

import pytest
from torch import Tensor

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.choice import check_still_apart
from tests.gradients_zoo import ZOO, Classifier, Steps, batch_of, choose, cross_entropy


def choose_for(name: str, how: str = "auto") -> Any:
    module, batch = ZOO[name].build()
    return choose(module, how, batch)


@pytest.mark.parametrize(
    ("name", "how", "reason"),
    [
        ("Linear", "auto", "functional: fastest, checked on 6 records"),
        ("strings in the batch", "auto", "loop: functional failed with GradientError.* not tensors"),
        ("weights reached past the module tree", "auto", r"loop: .* gradients that differ by .* in network\.0\.weight"),
        *(("Linear", how, f"{how}: asked for, checked on 6 records") for how in ("functional", "hooks", "loop")),
    ],
)
def test_the_reason_is_given_in_words(name: str, how: str, reason: str) -> None:
    gradients = choose_for(name, how)
    assert re.match(reason, gradients.reason)
    assert gradients.name == reason.partition(":")[0]


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
        choose_for(name, how)


def test_an_error_of_the_users_own_is_passed_on() -> None:
    class Broken(Classifier):
        def training_step(self, batch: Any, batch_index: int) -> Tensor:
            raise KeyError("label")

    with pytest.raises(KeyError, match="label"):
        choose(Broken())


def test_a_step_that_begins_to_decide_by_a_value_is_refused() -> None:
    """While it only logs the value, a stand-in changes nothing; later it would train another model."""

    def step(module: Any, batch: Any) -> Tensor:
        loss = cross_entropy(module, batch)
        seen = loss.detach().item()
        return loss * seen if module.later else loss

    module, batch = Steps(step), batch_of()
    module.later = False
    chosen = choose(module, batch=batch)
    assert chosen.name == "functional"
    check_still_apart(chosen, batch)
    module.later = True
    with pytest.raises(ConfigurationError, match=r"decides something by the value of a tensor.*Use 'loop'"):
        check_still_apart(chosen, batch)
