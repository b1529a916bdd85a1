"""The options that the three recipes have in common."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.measured.gradients import PUBLIC

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "results" / "figures"
KS = {"cifar10": (100, 250, 500, 1000, 1500, 2000), "svhn": (100, 250, 500, 1000, 1500, 2000)}
KS["mnist"] = tuple(k // 2 for k in KS["cifar10"])  # the paper halves k there
EPOCHS = 2
RANDOM = "random"
SOURCES = (*PUBLIC, RANDOM)


@dataclass(frozen=True)
class Options:
    """What to train and to measure."""

    data: str
    data_directory: Path
    working_directory: Path
    output: Path
    epochs: int | None
    steps: tuple[int, ...]
    k: tuple[int, ...]
    batch: int
    anchors: int
    sources: tuple[str, ...]
    overrides: tuple[str, ...]

    @property
    def file(self) -> Path:
        """Where the figures are."""
        return self.output / f"measured_{self.data}.json"

    def chosen_steps(self, an_epoch: int) -> list[int]:
        """After which steps to measure, if that was said: none if it was not."""
        epochs = [] if self.epochs is None else [epoch * an_epoch for epoch in range(self.epochs + 1)]
        return sorted(set(self.steps)) or epochs

    def picture(self, name: str) -> Path:
        """Where a picture goes."""
        return self.output / f"{name}_{self.data}.svg"


def options_from(arguments: Sequence[str] | None, name: str, about: str | None, sources: Sequence[str]) -> Options:
    """The options of a command that draws bases from `sources`, unless others are given."""
    parser = argparse.ArgumentParser(
        prog=f"python -m recipes.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", choices=sorted(KS), default="cifar10")
    add("--data-directory", type=Path, default=Path("data"), help="where the data sets are; docs/data.md says which")
    add("--working-directory", type=Path, help="of the training and its checkpoints; outputs/measured_<data>")
    add("--output", type=Path, default=FIGURES, help="where figures and pictures go")
    add("--epochs", type=int, help=f"measure at initialisation and after each of so many epochs ({EPOCHS})")
    add("--steps", type=int, nargs="+", default=[], help="measure after these steps instead; 0 is the initialisation")
    add("--k", type=int, nargs="+", default=[], help="sizes of the basis; that of the training is always among them")
    add("--batch", type=int, default=1000, help="private records that are looked at")
    add("--anchors", type=int, default=2000, help="public images that a basis is found with (m)")
    add("--sources", nargs="+", choices=SOURCES, default=list(sources), metavar="SOURCE", help=", ".join(SOURCES))
    add("--set", dest="overrides", nargs="+", default=[], metavar="KEY=VALUE", help="further settings of gep-train")
    found = vars(parser.parse_args(arguments))
    found["working_directory"] = found["working_directory"] or Path("outputs") / f"measured_{found['data']}"
    found["k"] = found["k"] or KS[found["data"]]
    return Options(**{key: tuple(value) if isinstance(value, list) else value for key, value in found.items()})
