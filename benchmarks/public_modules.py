"""How long public modules take to set up and to step; writes the table of docs/modules.md anew."""

import importlib.util
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import torch
from lightning.pytorch import Callback

from lightning_gep import GEPStrategy
from tests.public_modules import PUBLIC, Entry
from tests.test_public_modules import PAGE, TABLE, built, loader_of, outcome, rows
from tests.toys import trainer

PACKAGES = ("torch", "lightning", "torchvision", "timm", "segmentation_models_pytorch", "monai", "transformers", "peft")
HEAD = """\
| module | outcome | parameters | gradients by | set-up, s | plain step | GP step | GEP step |
|---|---|---|---|---|---|---|---|
"""
COPIES, COPIES_OF_SLOW, STEPS, REPETITIONS, SMALL = 40, 10, 5, 1, 100_000
"""How steps are timed: on copies of the records, since a batch of a few has nothing to vectorize."""


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
    """A fit of a few steps."""
    loader = loader_of(entry, COPIES_OF_SLOW if entry.slow else COPIES, STEPS)
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
    """For the table."""
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def line(name: str, entry: Entry) -> str:
    """A row of the table."""
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
