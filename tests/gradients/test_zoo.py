"""Every backend on every module of the zoo: the gradients are right, or the backend is refused. Never wrong."""

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend, take
from lightning_gep.gradients.ghost import GhostGradients
from tests.gradients.test_backends import fingerprint
from tests.gradients_zoo import ZOO, N, loss_of

BACKENDS = ("functional", "ghost", "hooks", "loop")
PAGE = Path(__file__).parents[2] / "docs" / "gradients.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def slow_gradients(module: LightningModule, batch: Any, groups: ParameterGroups) -> Tensor:
    rows = []
    for i in range(N):
        module.zero_grad(set_to_none=False)
        module.training_step(take(batch, [i]), 0).backward()
        named = dict(module.named_parameters())
        parameters = [named[name] for name in groups.shapes]
        rows.append(
            torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
        )
    return torch.stack(rows).clone()


def random_states() -> Any:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


@cache
def outcome(name: str, how: str) -> str | None:
    """The name of the backend that `how` leads to, None if refused; fails if it is wrong or leaves a trace."""
    case = ZOO[name]
    module, batch = case.build()
    groups = ParameterGroups.from_module(module)
    next(module.parameters()).grad = torch.ones_like(next(module.parameters()))
    before, states = fingerprint(module), random_states()
    try:
        gradients = choose_backend(module, loss_of(module), groups, batch, how)
    except ConfigurationError:
        return None
    finally:
        assert fingerprint(module) == before
        assert random_states() == states
    other, _ = case.build()
    if case.random:
        module.eval()
        other.eval()
    rows, right = gradients(batch), slow_gradients(other, batch, groups)
    assert rows.shape == right.shape
    assert rows.dtype == torch.float32
    tolerance, largest = 3e-2 if case.half else 1e-5, right.norm(dim=1).max()
    assert (rows - right).norm(dim=1).max() <= tolerance * largest
    if isinstance(gradients, GhostGradients):
        factored = gradients.factored(batch)
        assert (factored.norms() - right.norm(dim=1)).abs().max() <= 10 * tolerance * largest
        total = factored.weighted_sum(torch.ones(len(right), dtype=torch.float64))
        assert (total - right.sum(0)).norm() <= len(right) * tolerance * largest
    return gradients.name


def table() -> str:
    lines = [f"| | {' | '.join(BACKENDS)} | `auto` takes |", "|---|---|---|---|---|---|"]
    for name in ZOO:
        marks = ["right" if outcome(name, how) else "refused" for how in BACKENDS]
        lines.append(f"| {name} | {' | '.join(marks)} | {outcome(name, 'auto')} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ZOO)
def test_gradients_are_right_or_the_backend_is_refused(name: str) -> None:
    assert outcome(name, "functional") in ("functional", None)
    assert outcome(name, "ghost") in ("ghost", None)
    assert outcome(name, "hooks") in ("hooks", None)
    assert outcome(name, "loop") == "loop", "it works on everything"
    assert outcome(name, "auto") in ("functional", "loop")


def test_the_table_in_the_docs_is_what_was_observed() -> None:
    written = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert written is not None
    assert written.group() == table(), "run `python -m tests.gradients.test_zoo` to rewrite the table"


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
