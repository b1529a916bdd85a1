"""Which backend is chosen, what is said about it, and that choosing leaves no trace."""

import ast
import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lightning_gep.gradients as gradients_package
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend
from tests.gradients.test_backends import fingerprint
from tests.gradients_zoo import ZOO, Classifier, CollectsOutputs, LogsMetric, loss_of


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


@pytest.mark.parametrize("how", ["functional", "hooks"])
@pytest.mark.parametrize("name", ZOO)
def test_choosing_leaves_the_module_and_the_random_states_alone(name: str, how: str) -> None:
    module, batch = ZOO[name].build()
    parts = list(module.modules())
    parts[-1].eval()
    parameters = list(module.parameters())
    parameters[0].grad = torch.ones_like(parameters[0])
    before, states = fingerprint(module), random_states()
    with contextlib.suppress(ConfigurationError):
        choose_backend(module, loss_of(module), ParameterGroups.from_module(module), batch, how)
    assert fingerprint(module) == before
    assert random_states() == states
    assert torch.get_default_dtype() == torch.float32
    module.zero_grad()
    module.training_step(batch, 0).backward()
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in module.parameters())


def random_states() -> Any:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def test_metrics_and_collected_outputs_do_not_see_the_public_batch() -> None:
    metric, batch = LogsMetric(), ZOO["Linear"].build()[1]
    metric.training_step(batch, 0)
    value, count = metric.accuracy.compute(), metric.accuracy._update_count
    choose_backend(metric, loss_of(metric), ParameterGroups.from_module(metric), batch)
    assert metric.accuracy._update_count == count
    assert torch.equal(metric.accuracy.compute(), value)

    collects = CollectsOutputs()
    outputs = collects.outputs
    choose_backend(collects, loss_of(collects), ParameterGroups.from_module(collects), batch)
    assert collects.outputs is outputs
    assert outputs == []


def test_an_error_of_the_users_own_is_passed_on() -> None:
    class Broken(Classifier):
        def training_step(self, batch: Any, batch_index: int) -> Tensor:
            raise KeyError("label")

    module = Broken()
    with pytest.raises(KeyError, match="label"):
        choose_backend(module, loss_of(module), ParameterGroups.from_module(module), ZOO["Linear"].build()[1])


@pytest.mark.parametrize(
    "file", sorted(Path(gradients_package.__file__).parent.glob("*.py")), ids=lambda file: file.stem
)
def test_only_the_hooks_know_opacus_and_nothing_knows_lightning(file: Path) -> None:
    statements = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    names = {node.module or "" for node in statements if isinstance(node, ast.ImportFrom)}
    packages = {name.split(".")[0] for name in names}
    assert not {"lightning", "pytorch_lightning", "lightning_fabric"} & packages
    assert ("opacus" in packages) == (file.stem == "hooks")
