"""PATE's part of the page of results."""

import statistics
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_gep.privacy.files import read_json
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.groups import spread
from lightning_gep.reporting.text import NOTHING, with_spread
from recipes.data.image_sets import PRIVATE
from recipes.published import EPSILONS, PATE_NOTE, RESULTS
from recipes.writing import WIDTH, markdown_table

FOLDER = "pate"
HEAD = ["", "published, %", "ours, %", "runs", "ε, whatever the votes", "ε for these votes", "queries answered"]
ABOUT = (
    "By `python -m recipes.pate`: teachers on disjoint parts of the private images, whose noisy majority (Gaussian, "
    "where a noisy check finds it clear) labels public images, a fifth of the test set; a student learns from these "
    "labels and from its own word for the other public images, and is tested on the rest of the test set. The paper's "
    f"figures are those of Papernot et al. (2018), with semi-supervised students. {PATE_NOTE} So does the last ε "
    "here; the other one holds for any votes, and is what the queries were limited by."
)


def section(output: Path) -> list[str]:
    """The table, if there are results."""
    rows = [row for path in sorted((output / FOLDER).glob("*.json")) for row in _rows(read_json(path))]
    return ["## PATE", "", *textwrap.wrap(ABOUT, WIDTH), "", *markdown_table(HEAD, rows), ""] if rows else []


def _rows(figures: dict[str, Any]) -> Iterator[list[str]]:
    title = PRIVATE[figures["settings"]["data"]].title
    published = dict(zip(EPSILONS, RESULTS[title].accuracies["pate"], strict=True))
    for target in dict.fromkeys(row["target_epsilon"] for row in figures["rows"]):
        runs = [row for row in figures["rows"] if row["target_epsilon"] == target]
        values = [100 * row["test_accuracy"] for row in runs]
        yield [
            f"{title}, ε = {target:g}, {figures['settings']['teachers']} teachers",
            f"{published[target]:.1f}" if target in published else NOTHING,
            with_spread(*spread(values), 2),
            str(len(runs)),
            rounded_up(max(row["epsilon"] for row in runs)),
            rounded_up(max(row["nonprivate_epsilon_of_these_votes"] for row in runs)),
            f"{statistics.fmean(row['answered'] for row in runs):.0f} of "
            f"{statistics.fmean(row['queries'] for row in runs):.0f}",
        ]
