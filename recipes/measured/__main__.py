"""Measures and draws norms, stable ranks and projection errors of gradients, as in three figures of the paper.

    python -m recipes.measured --data-directory data
    python -m recipes.measured --data-directory data --data mnist

Trains for two epochs first; interrupted, the same command continues the training. Writes measured_<data>.json and one
picture for each figure; without that file everything is measured anew, with it the figures are only drawn. They look at
private records without noise: they are diagnostics for public data sets, and no ε covers them.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lightning_gep.cli.commands import errors_in_a_line
from lightning_gep.cli.configs import composed
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.files import write_json
from recipes.measured.figures import FIGURES
from recipes.measured.figures.gradient_norms import FIGURE_1, noise_norms
from recipes.measured.measuring import file_of, measure
from recipes.measured.training import experiment
from recipes.running.outcome import RESULTS

KS = dict.fromkeys(("cifar10", "svhn"), (100, 250, 500, 1000, 1500, 2000))
KS["mnist"] = tuple(k // 2 for k in KS["cifar10"])  # the paper halves k there


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 0, or 2 for a setting that cannot work."""
    with errors_in_a_line("python -m recipes.measured"):
        draw_figures(parse(arguments))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m recipes.measured", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", choices=sorted(KS), default="cifar10")
    add("--data-directory", type=Path, default=Path("data"), help="where the data sets are (docs/data.md)")
    add("--working-directory", type=Path, help="of the training and its checkpoints; outputs/measured_<data>")
    add("--output", type=Path, default=RESULTS / "figures", help="where figures and pictures go")
    add("--steps", type=int, nargs="+", help="measure after these steps (default: 0 and the ends of two epochs)")
    add("--k", type=int, nargs="+", default=[], help="basis sizes; that of the training is always among them")
    add("--batch", type=int, default=1000, help="private records that are looked at")
    add("--anchors", type=int, default=2000, help="public images that a basis is found with (m)")
    add("--set", dest="overrides", nargs="+", default=[], metavar="KEY=VALUE", help="further settings of gep-train")
    asked = parser.parse_args(arguments)
    asked.working_directory = asked.working_directory or Path("outputs") / f"measured_{asked.data}"
    asked.k = asked.k or KS[asked.data]
    return asked


def draw_figures(asked: argparse.Namespace) -> None:
    """Measure what is missing, then draw and print every figure."""
    figures = measure(asked)
    if "noise" not in figures:
        epochs = {e: composed([f"experiment={experiment(asked.data, 'gp', e)}"]).trainer.max_epochs for e in (2, 8)}
        figures["noise"] = noise_norms(figures["settings"], [(2, epochs[2]), FIGURE_1, (8, epochs[8])])
        write_json(file_of(asked), figures)
    for figure in FIGURES:
        figure.draw(figures, asked.output / f"{figure.NAME}_{asked.data}.svg")
        print(f"\n{figure.TITLE}\n\n{figure.table(figures)}")


def measure_missing(data_directory: Path, work: Path, output: Path) -> None:
    """The figures that have no picture yet, for CIFAR-10 and MNIST; a line where one cannot be measured."""
    for data in ("cifar10", "mnist"):
        if not all((output / f"{figure.NAME}_{data}.svg").exists() for figure in FIGURES):
            where = ["--data-directory", data_directory, "--working-directory", work / f"measured_{data}"]
            try:
                draw_figures(parse(["--data", data, *map(str, where), "--output", str(output)]))
            except ConfigurationError as error:
                print(f"Figures of {data}: not measured. {error}")


if __name__ == "__main__":
    main()
