"""Every backend on every module of the zoo: the gradients are right, or the backend is refused. Never wrong."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend
from tests.gradients_zoo import ZOO, Case, loss_of

BACKENDS = ("functional", "hooks", "loop")
PAGE = Path(__file__).parents[2] / "docs" / "gradients.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def record(batch: Any, i: int) -> Any:
    if isinstance(batch, Tensor):
        return batch[i : i + 1]
    if isinstance(batch, dict):
        return {key: record(value, i) for key, value in batch.items()}
    if isinstance(batch, list):
        return [batch[i]]
    if isinstance(batch, tuple):
        items = [record(item, i) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else tuple(items)
    return batch


def number_of_records(batch: Any) -> int:
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch)


def slow_gradients(module: LightningModule, batch: Any, groups: ParameterGroups) -> Tensor:
    rows = []
    for i in range(number_of_records(batch)):
        module.zero_grad(set_to_none=False)
        module.training_step(record(batch, i), 0).backward()
        named = dict(module.named_parameters())
        parameters = [named[name] for name in groups.shapes]
        rows.append(
            torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
        )
    return torch.stack(rows).clone()


def tolerance(case: Case, dtype: torch.dtype) -> float:
    return 3e-2 if case.half else 1e-12 if dtype == torch.float64 else 1e-5


def chosen(case: Case, how: str, dtype: torch.dtype = torch.float32) -> str | None:
    """The name of the backend that `how` leads to, None if refused; fails if its gradients are wrong."""
    module, batch = case.build(dtype)
    groups = ParameterGroups.from_module(module)
    try:
        gradients = choose_backend(module, loss_of(module), groups, batch, how)
    except ConfigurationError:
        return None
    other, _ = case.build(dtype)
    if case.random:
        module.eval()
        other.eval()
    rows, right = gradients(batch), slow_gradients(other, batch, groups)
    assert rows.shape == right.shape
    assert rows.dtype == dtype
    assert (rows - right).norm(dim=1).max() <= tolerance(case, dtype) * right.norm(dim=1).max()
    return gradients.name


@cache
def outcome(name: str, how: str) -> str | None:
    return chosen(ZOO[name], how)


def table() -> str:
    lines = ["| | functional | hooks | loop | `auto` takes |", "|---|---|---|---|---|"]
    for name in ZOO:
        marks = ["right" if outcome(name, how) else "refused" for how in BACKENDS]
        lines.append(f"| {name} | {' | '.join(marks)} | {outcome(name, 'auto')} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("how", [*BACKENDS, "auto"])
@pytest.mark.parametrize("name", ZOO)
def test_gradients_are_right_or_the_backend_is_refused(name: str, how: str) -> None:
    found = outcome(name, how)
    assert found in ((how, None) if how in BACKENDS else BACKENDS)


@pytest.mark.parametrize("name", ZOO)
def test_the_loop_works_on_everything(name: str) -> None:
    assert outcome(name, "loop") == "loop"


def test_the_table_in_the_docs_is_what_was_observed() -> None:
    written = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert written is not None
    assert written.group() == table(), "run `python -m tests.gradients.test_zoo` to rewrite the table"


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
