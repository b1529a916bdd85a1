"""Accuracy of `classification` by mechanism and seed: python -m recipes.text.accuracy. Finished runs are kept."""

import json
import time
from pathlib import Path
from statistics import mean, stdev

from recipes.text.classification import MECHANISMS, main

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
    lines = ["| mechanism | test accuracy, % | seeds |", "|---|---|---|"]
    for mechanism in MECHANISMS:
        found = [100 * run["accuracy"] for run in runs if run["mechanism"] == mechanism]
        if found:
            spread = f" ± {stdev(found):.2f}" if len(found) > 1 else ""
            lines.append(f"| {mechanism} | {mean(found):.2f}{spread} | {len(found)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(measure()))
