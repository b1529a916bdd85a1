"""What the table of public modules in docs/modules.md says is what happens; run as a script, this writes the table."""

import importlib.util
import logging
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader

from lightning_gep import ConfigurationError, GEPStrategy
from tests.public_modules import PUBLIC, RECORDS, Entry
from tests.strategy.test_modules import Gradient, plain_gradient
from tests.toys import INF, trainer

PAGE = Path(__file__).parent.parent / "docs" / "modules.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
PACKAGES = ("torch", "lightning", "torchvision", "timm", "segmentation_models_pytorch", "monai", "transformers", "peft")
HEAD = """\
| module | outcome | parameters | gradients by | set-up, s | plain step | GP step | GEP step |
|---|---|---|---|---|---|---|---|
"""
COPIES, COPIES_OF_SLOW, STEPS, REPETITIONS, SMALL = 40, 10, 5, 1, 100_000
"""How steps are timed: on copies of the records, since a batch of a few has nothing to vectorize."""


def built(build: Any) -> LightningModule:
    """A module that trains, and downloads nothing."""
    torch.manual_seed(0)
    module = build()
    module.prepare_data = lambda: None
    if not is_overridden("configure_optimizers", module):
        module.configure_optimizers = lambda: torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.01)
    return module


def loader_of(entry: Entry, copies: int = 1, seed: int = 1) -> DataLoader[Any]:
    torch.manual_seed(seed)
    records = entry.records()
    records = list(records) * (copies * STEPS) if copies > 1 else records
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
    assert used.prepared.gradients.backend.name == rows()[name][2], "python -m tests.test_public_modules"
    assert set(seen.seen) == set(expected)
    for parameter, gradient in expected.items() if not entry.random else ():
        torch.testing.assert_close(seen.seen[parameter], gradient, rtol=1e-3, atol=1e-5)


class Stopwatch(Callback):
    """CPU seconds from its making to the first step, and those of every further step."""

    def __init__(self) -> None:
        self.last, self.setup, self.steps = time.process_time(), 0.0, []

    def on_train_batch_start(self, *_: Any) -> None:
        self.setup = self.setup or time.process_time() - self.last
        self.last = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps.append(time.process_time() - self.last)


def timed(entry: Entry, used: Any) -> Stopwatch:
    loader = loader_of(entry, COPIES_OF_SLOW if entry.slow else COPIES)
    with tempfile.TemporaryDirectory() as directory:
        module, watch = built(entry.module), Stopwatch()
        trainer(directory, used, callbacks=[watch], max_epochs=1).fit(module, loader)
    return watch


def measured(entry: Entry) -> Iterator[str]:
    """The cells of a module that works: parameters, backend, set-up, and steps against plain ones."""
    count = sum(p.numel() for p in built(entry.module).parameters() if p.requires_grad)
    public = loader_of(entry, seed=2)
    backend, watches = "", [[], [], []]
    for _ in range(REPETITIONS):
        private = {"epsilon": 8.0, "delta": 1e-5}
        gp = GEPStrategy(mechanism="gp", **private)
        watches[0].append(timed(entry, "auto"))
        watches[1].append(timed(entry, gp))
        assert gp.prepared is not None
        backend = gp.prepared.gradients.backend.name
        if count <= SMALL:
            watches[2].append(timed(entry, GEPStrategy(aux_dataloader=public, public_data_is_disjoint=True, **private)))
    plain, *ours = (statistics.median([s for watch in found for s in watch.steps[1:]] or [0]) for found in watches)
    setup = (statistics.median([watch.setup for watch in found]) for found in watches[1:] if found)
    yield from (f"{count:,}", backend, ", ".join(f"{seconds:.1f}" for seconds in setup), milliseconds(plain))
    yield from (f"{milliseconds(step)}, {step / plain:.1f} ×" if step else "" for step in ours)


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def line(name: str, entry: Entry) -> str:
    cells = [""] * 6 if entry.refused else list(measured(entry))
    row = f"| {' | '.join([name, outcome(entry), *cells])} |\n"
    print(row, end="", flush=True)
    return row


def write(words: Sequence[str]) -> None:
    """Measure everything again, or what has one of the words in its name; other rows stay."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    asked = {name: entry for name, entry in PUBLIC.items() if not words or any(word in name for word in words)}
    found = {name: line(name, entry) for name, entry in asked.items() if importlib.util.find_spec(entry.package)}
    old = {name: f"| {' | '.join([name, *cells])} |\n" for name, cells in rows().items()}
    table = HEAD + "".join({**old, **found}.get(name, "") for name in PUBLIC)
    PAGE.write_text(TABLE.sub(lambda _: table, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(*(f"{package} {version(package)}" for package in PACKAGES), sep=", ")


if __name__ == "__main__":
    write(sys.argv[1:])
