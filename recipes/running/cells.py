"""What a table is made of: cells, each an experiment with its seeds, and the runs they stand for."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lightning_gep.errors import ConfigurationError

TRACKED = ("mechanism.subspace=tracked", "mechanism.num_anchors=50")
"""Our basis in place of the paper's, whose cold start on 2000 anchors at each step takes several times as long."""
OUR_BASIS = (*TRACKED, "mechanism.groups=balanced")


@dataclass(frozen=True)
class Cell:
    """One number: an experiment of `conf/`, what is changed about it, and what was published for it, in percent."""

    name: str
    panel: str
    """What it is compared within, `MNIST, ε = 2`: a picture has one part for each."""
    line: str
    """Which of those it is: `GEP`."""
    experiment: str
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    k: int | None = None
    """Where it lies in a figure over k."""
    published: float | None = None
    published_spread: float | None = None
    published_epsilon: float | None = None
    """The ε that the noise behind the published figure gives, by privacy loss distributions; None: not known."""

    @property
    def label(self) -> str:
        """What tells it from the others of its panel."""
        return self.line if self.k is None else f"{self.line}, k = {self.k}"


@dataclass(frozen=True)
class Run:
    """One training: a cell of a table with one of its seeds."""

    table: str
    cell: Cell
    seed: int

    @property
    def name(self) -> str:
        """Of its files: `table1-mnist_gep_eps2-seed0`."""
        return f"{self.table}-{self.cell.name}-seed{self.seed}"


@dataclass(frozen=True)
class Table:
    """A table or figure that training runs give. `about` is what a reader has to know to compare."""

    name: str
    title: str
    published: str
    """What the paper says, in short."""
    about: str
    cells: tuple[Cell, ...]
    headline: str = "GEP"
    """The line whose figures stand for the table where there is room for few."""
    judged_by: str = "test_accuracy"
    """Which figure of a result stands for a run: `validation_accuracy` where settings are chosen by it."""
    follows: str = "test_accuracy"
    """Which curve of a result its picture shows."""
    baseline: tuple[Run, ...] = ()
    """Runs of another table that it is read against: the same training without privacy."""

    @property
    def rows(self) -> tuple[Cell, ...]:
        """Its cells, below those that they are read against."""
        return (*(run.cell for run in self.baseline), *self.cells)

    def runs(self, only: Sequence[str] = ("*",), seeds: Sequence[int] | None = None) -> list[Run]:
        """The runs of the cells that fit one of the names (`*` stands for anything), with these seeds or all."""
        return [
            Run(self.name, cell, seed)
            for cell in self.cells
            if any(fnmatchcase(cell.name, pattern) for pattern in only)
            for seed in cell.seeds
            if seeds is None or seed in seeds
        ]


def check_names(tables: Sequence[Table], only: Sequence[str]) -> None:
    """Raises ConfigurationError for a name that no cell has."""
    names = [cell.name for table in tables for cell in table.cells]
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigurationError(f"--only {pattern} fits no cell. There are: {', '.join(names)}.")
