"""What a table is made of: cells, each an experiment with its seeds, and the training runs they stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

TRACKED = ("mechanism.subspace=tracked", "mechanism.num_anchors=50")
"""Our basis. The paper's, a cold start on 2000 anchors at every step, takes several times as long."""
OUR_BASIS = (*TRACKED, "mechanism.groups=balanced")


@dataclass(frozen=True)
class Cell:
    """One number of a table: an experiment of `conf/`, the overrides applied to it, and the published figure (%)."""

    name: str
    panel: str
    """The group of cells it is compared with, such as `MNIST, ε = 2`. Each panel is one plot."""
    line: str
    """Its label within the panel, such as `GEP`."""
    experiment: str
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    published: float | None = None
    published_spread: float | None = None
    published_epsilon: float | None = None
    """The ε that the authors' noise really gives, by privacy loss distributions; None if unknown."""


@dataclass(frozen=True)
class Run:
    """One training run: a cell of a table with one of its seeds."""

    table: str
    cell: Cell
    seed: int

    @property
    def name(self) -> str:
        """The name of its files, such as `table1-mnist_gep_eps2-seed0`."""
        return f"{self.table}-{self.cell.name}-seed{self.seed}"


@dataclass(frozen=True)
class Table:
    """A table or figure made of training runs. `about` is what a reader needs to know to compare the rows."""

    name: str
    title: str
    about: str
    cells: tuple[Cell, ...]
    judged_by: str = "test_accuracy"
    """The figure of a result that counts; `validation_accuracy` where settings are chosen by it."""
    follows: str = "test_accuracy"
    """The curve of a result that is plotted."""
    baseline: tuple[Run, ...] = ()
    """Runs of another table to compare with: the same training without privacy."""

    @property
    def rows(self) -> tuple[Cell, ...]:
        """The baseline's cells, then its own."""
        return (*(run.cell for run in self.baseline), *self.cells)

    def runs(self, only: Sequence[str] = ("*",), seeds: Sequence[int] | None = None) -> list[Run]:
        """The runs of the cells that match one of the patterns (`*` is a wildcard), with these seeds or all seeds."""
        return [
            Run(self.name, cell, seed)
            for cell in self.cells
            if any(fnmatchcase(cell.name, pattern) for pattern in only)
            for seed in cell.seeds
            if seeds is None or seed in seeds
        ]


@dataclass(frozen=True)
class Comparison:
    """Mechanisms at the same ε, network and number of trials, GP among them, and the matching row without privacy."""

    label: str
    table: Table
    cells: Mapping[str, str]
    """The cell of each mechanism that was run there, by the name that readers know."""
    without_privacy: str
    epsilon: float = 2.0
    panel: str = ""
    """Where in the README's picture it is a point of each curve."""
