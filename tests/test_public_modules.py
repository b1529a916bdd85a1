"""What the table of public modules in docs/modules.md says is what happens."""

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader

from lightning_gep import ConfigurationError, GEPStrategy
from tests.gradients_zoo import loss_of
from tests.public_modules import PUBLIC, RECORDS, Entry
from tests.toys import INF, trainer

PAGE = Path(__file__).parent.parent / "docs" / "modules.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


class Gradient(Callback):
    def on_after_backward(self, trainer: Any, pl_module: LightningModule) -> None:
        self.seen = {name: p.grad.clone() for name, p in pl_module.named_parameters() if p.grad is not None}


def plain_gradient(module: LightningModule, batch: Any) -> dict[str, torch.Tensor]:
    loss = loss_of(module)(batch)
    (loss["loss"] if isinstance(loss, dict) else loss).backward()
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in trained}


def built(build: Any) -> LightningModule:
    """A module that trains, and downloads nothing."""
    torch.manual_seed(0)
    module = build()
    module.prepare_data = lambda: None
    if not is_overridden("configure_optimizers", module):
        module.configure_optimizers = lambda: torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.01)
    return module


def loader_of(entry: Entry, copies: int = 1, steps: int = 1, seed: int = 1) -> DataLoader[Any]:
    """One batch of the records or, with copies, some steps of them."""
    torch.manual_seed(seed)
    records = entry.records()
    records = list(records) * (copies * steps) if copies > 1 else records
    return DataLoader(records, batch_size=copies * RECORDS, collate_fn=entry.collate)


def outcome(entry: Entry) -> str:
    if entry.refused:
        return f"refused: {entry.refused}"
    return f"works with one change: {entry.change}" if entry.change else "works"


@cache
def rows() -> dict[str, list[str]]:
    """The cells of the page's table by module."""
    table = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert table is not None
    cells = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in table.group().splitlines()[2:])
    return {row[0]: row[1:] for row in cells}


def test_the_table_has_every_module_with_its_outcome() -> None:
    assert {name: row[0] for name, row in rows().items()} == {name: outcome(entry) for name, entry in PUBLIC.items()}
    assert len(PUBLIC) >= 40


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if entry.slow else []) for n, entry in PUBLIC.items()]
)
def test_the_outcome_is_that_of_the_table(name: str, tmp_path: Path) -> None:
    """A module that works has the gradient of plain training, by the backend that the table names."""
    entry = PUBLIC[name]
    if importlib.util.find_spec(entry.package) is None:
        pytest.skip(f"needs {entry.package}")

    def fit(module: LightningModule, *callbacks: Callback) -> GEPStrategy:
        used = GEPStrategy(mechanism="gp", noise_multiplier=0.0, clip_norm=INF, delta=0.01, generator="seeded")
        trainer(tmp_path, used, callbacks=list(callbacks), max_steps=1).fit(module, loader_of(entry))
        return used

    for refused in filter(None, (entry.before, entry.module if entry.refused else None)):
        with pytest.raises(ConfigurationError, match=re.escape(entry.says)):
            fit(built(refused))
    if entry.refused:
        return
    module, plain, seen = built(entry.module), built(entry.module), Gradient()
    plain.on_train_epoch_start()
    expected = plain_gradient(plain, next(iter(loader_of(entry))))
    used = fit(module, seen)
    assert used.prepared is not None
    assert used.prepared.gradients.backend.name == rows()[name][2], "python -m benchmarks.public_modules"
    assert set(seen.seen) == set(expected)
    for parameter, gradient in expected.items() if not entry.random else ():
        torch.testing.assert_close(seen.seen[parameter], gradient, rtol=1e-3, atol=1e-5)
