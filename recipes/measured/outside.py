"""How much of the gradient lies outside GEP's subspace, in every setting in which it is compared with GP.

    python -m recipes.measured.outside --data-directory data

Trains the first 50 steps of each run of GEP again, with the noise and the schedule of the run, and averages what the
last ten of them say of their records: the root of the residuals' share in the energy of the gradients. It is computed
from private records without noise, so no ε covers it. Settings that are in the file already are not run again.
"""

import argparse
import gc
import statistics
from pathlib import Path

from lightning_gep.cli.commands import errors_in_a_line
from lightning_gep.cli.job import train
from lightning_gep.privacy.files import read_json, write_json
from lightning_gep.reporting.records import read_metrics
from recipes.running.outcome import RESULTS, Result, results_of
from recipes.running.settings import composed
from recipes.tables import COMPARISONS
from recipes.tables.types import Comparison, Run

FILE = "outside.json"
LOGGED = "nonprivate/residual_share"
STEPS, AVERAGED = 50, 10


def shares(output: Path = RESULTS) -> dict[str, float]:
    """What has been measured, by the label of the setting."""
    return read_json(output / FILE) if (output / FILE).exists() else {}


def measure(comparison: Comparison, result: Result, data: Path, work: Path) -> float:
    """Train the first steps of the run of GEP that has this result."""
    cell = next(cell for cell in comparison.table.cells if cell.name == comparison.cells["GEP"])
    config = composed(
        Run(comparison.table.name, cell, result["seed"]),
        (
            "privacy.epsilon=null",
            f"privacy.noise_multiplier={result['noise_multiplier']}",
            "privacy.log_nonprivate=true",
            f"trainer.max_steps={STEPS}",
            "trainer.log_every_n_steps=1",
            "~callbacks.accuracy_curve",
        ),
    )
    config.data.directory, config.output_dir = str(data), str(work / f"outside-{comparison.table.name}-{cell.name}")
    train(config)
    gc.collect()  # a reference cycle holds the strategy with its large basis
    logged = [row[LOGGED] for row in read_metrics(Path(config.output_dir)) if LOGGED in row]
    return statistics.fmean(logged[-AVERAGED:])


def main() -> None:
    """Measure the settings that have a run of GEP, and no share yet."""
    parser = argparse.ArgumentParser(
        "python -m recipes.measured.outside", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-directory", type=Path, default=Path("data"), help="where the data sets are")
    parser.add_argument("--work", type=Path, default=Path("outputs") / "recipes", help="where the trainings are kept")
    asked = parser.parse_args()
    with errors_in_a_line(parser.prog):
        found = shares()
        for comparison in COMPARISONS:
            runs = results_of(comparison.table)[comparison.cells["GEP"]] if "GEP" in comparison.cells else []
            if runs and comparison.label not in found:
                found[comparison.label] = round(measure(comparison, runs[0], asked.data_directory, asked.work), 4)
                print(f"{comparison.label}: {found[comparison.label]:.3f}", flush=True)
                write_json(RESULTS / FILE, found)


if __name__ == "__main__":
    main()
