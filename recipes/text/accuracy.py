"""Accuracy of `classification` by mechanism and seed: python -m recipes.text.accuracy. Finished runs are kept."""

import json
import time
from pathlib import Path

from lightning_gep.reporting.groups import grouped, spread
from lightning_gep.reporting.text import with_spread
from recipes.text.classification import MECHANISMS, main
from recipes.writing import markdown_table

RESULTS = Path(__file__).parents[2] / "docs/results/text_classification.json"
EPSILON, SEEDS = 3.0, (0, 1, 2)


def measure(results=RESULTS):
    """Run what is missing, seed by seed."""
    runs = json.loads(results.read_text()) if results.exists() else []
    done = {(run["mechanism"], run["seed"]) for run in runs}
    for mechanism, seed in ((mechanism, seed) for seed in SEEDS for mechanism in MECHANISMS):
        if (mechanism, seed) in done:
            continue
        start = time.process_time()
        accuracy, spent = main(mechanism, EPSILON, seed)
        seconds = round(time.process_time() - start)
        epsilon = None if mechanism == "none" else round(spent, 4)
        run = {"mechanism": mechanism, "seed": seed, "accuracy": accuracy, "epsilon": epsilon, "cpu_seconds": seconds}
        runs.append(run)
        results.write_text(json.dumps(runs, indent=1) + "\n")
    return runs


def table(runs):
    """A line of Markdown per mechanism: mean and standard deviation over seeds, in per cent."""
    found = grouped(runs, lambda run: run["mechanism"])
    accuracies = {mechanism: [100 * run["accuracy"] for run in found[mechanism]] for mechanism in found}
    rows = [[mechanism, with_spread(*spread(values), 2), len(values)] for mechanism, values in accuracies.items()]
    return "\n".join(markdown_table(["mechanism", "test accuracy, %", "seeds"], rows))


if __name__ == "__main__":
    print(table(measure()))
