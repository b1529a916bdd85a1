"""The page of all results. The same results always give the same text."""

import textwrap
from collections import Counter
from importlib import import_module
from pathlib import Path

from lightning_gep.reporting.text import counted
from recipes.all_tables import PAIRS, TABLES
from recipes.pate import page as pate
from recipes.running import comparison
from recipes.running.cells import Table
from recipes.running.outcome import RESULTS, Result, results_of
from recipes.running.overview import README, drawn, ours, overview
from recipes.running.page_table import WIDTH, section

PAGE = "README.md"
INTRODUCTION = """\
# The paper, reproduced

Written by `python -m recipes.results` from the files in `runs/`; a figure that is changed by hand fails a test. `make
results DATA=directory` runs what is missing, and `recipes/README.md` tells the command of each table.

(summary)
## How to read the tables

- **published**: test accuracy in percent, as the paper prints it; ± where it gives a standard deviation.
- **its true ε**: what the noise of the authors' code gives by privacy loss distributions (PLD), at the same δ, if
  batches had been Poisson samples and embedding and residual share one sample. A dash: the paper does not tell enough.
  The authors also picked the best checkpoint on the test set; ours is the last one.
- **ours**: mean test accuracy in percent ± standard deviation (n − 1) over seeds; `not run` where there is no run yet.
- **ε**: the largest that one of our runs spent, by PLD (by RDP in the row that says so), rounded up.
- **time**: of one run from start to end, on one thread with others beside it: the mean over seeds, whatever machine
  they ran on. Looks at the test images for the curves are included, and so are pauses, which runs do not note: some of
  the linear layer's stood still for most of it, B-GEP on CIFAR-10 for a fifth, and the first run on features computed
  them.

In pictures, dotted lines are published figures; curves are single runs, and nothing was chosen by looking at them.
"""
SUMMARY = "(summary)\n"
FIGURES = {
    "gradient_norms": (
        "Noise norm against gradient norm",
        "a picture of GP on ResNet20 at initialisation, with the noise of ε = 5 after 90 epochs",
    ),
    "stable_rank": (
        "Stable rank of gradients and of residuals",
        "small for gradients throughout, an order of magnitude larger for residuals (first stage, all training images; "
        "ours are of a batch)",
    ),
    "projection_error": (
        "Projection error against k",
        "curves that flatten as k grows, and above 95 % throughout for a random basis",
    ),
}
"""Figures that are no training runs, by the recipe that draws them, and what the paper shows or says, in words."""
ABOUT_FIGURES = (
    "Lengths are of means over a batch: of clipped gradients, embeddings and residuals, as they are released, unless a "
    "line says otherwise. Projection errors are those of the mean gradient before clipping, all parameters together. "
    "They are computed from training images without noise, so no ε covers them: that is for data that is public anyway."
)


def write_page(output: Path = RESULTS) -> None:
    """Write the page and its pictures; where they are the project's own, the list of recipes too."""
    from recipes.running.plots import draw_all  # matplotlib comes with the dev extra, and takes a second

    output.mkdir(parents=True, exist_ok=True)
    draw_all(TABLES, output)
    comparison.draw(PAIRS, output)
    (output / PAGE).write_text(page(output), "utf-8")
    if output == RESULTS:
        README.write_text(overview(README.read_text("utf-8"), TABLES, FIGURES), "utf-8")


def page(output: Path = RESULTS) -> str:
    """The whole page."""
    results = {table.name: results_of(table, output) for table in TABLES}
    opening, legend = INTRODUCTION.split(SUMMARY)
    lines = [*opening.splitlines(), *comparison.summary(PAIRS, output), "", *legend.strip().splitlines()]
    for table in TABLES:
        lines += ["", *section(table, results[table.name], heading="## ")]
        lines += [line for name in pictures(table, results[table.name]) for line in ("", f"![{table.title}]({name})")]
    lines += ["", *pate.section(output), *figure_section(output)]
    lines += ["", *machine_section([r for cells in results.values() for found in cells.values() for r in found])]
    return "\n".join(lines) + "\n"


def pictures(table: Table, results: dict[str, list[Result]]) -> list[str]:
    """The files of the pictures that a table has, with the results there are."""
    if not any(results.values()):
        return []
    against_k = [f"{table.name}_over_k.svg"] if any(cell.k is not None for cell in table.cells) else []
    return [f"{table.name}.svg", *against_k]


def figure_section(output: Path) -> list[str]:
    """What other recipes have drawn, with its numbers."""
    from recipes.measured.drawing import data_title  # matplotlib, as above

    lines = ["## Figures that are no training runs", "", *textwrap.wrap(ABOUT_FIGURES, WIDTH)]
    for name, (title, published) in FIGURES.items():
        measured = drawn(name, output)
        words = " ".join([f"By `python -m recipes.{name}`. The paper has {published}.", *ours(name, measured.values())])
        lines += ["", f"### {title}", "", *textwrap.wrap(words, WIDTH, break_on_hyphens=False)]
        lines += [] if measured else ["", "Not run."]
        for picture, figures in measured.items():
            table = import_module(f"recipes.{name}").table(figures)
            lines += ["", f"![{title}: {data_title(figures)}](figures/{picture.name})", ""]
            lines += [f"{data_title(figures)}:", "", *table.splitlines()]
    return lines


def machine_section(results: list[Result]) -> list[str]:
    """What the runs were made with."""
    words = Counter(_made_with(result) for result in results)
    changed = Counter(_made_with(result) for result in results if result["versions"]["git_dirty"])
    lines = [
        f"- {counted(count, 'run')}: {made_with}"
        + (f"; {changed[made_with]} with uncommitted changes" * (made_with in changed))
        for made_with, count in sorted(words.items())
    ]
    return ["## Made with", "", *(lines or ["Nothing has been run yet."])]


def _made_with(result: Result) -> str:
    machine, versions = result["machine"], result["versions"]
    packages = ("python", "torch", "lightning", "opacus", "dp_accounting", "lightning_gep")
    software = ", ".join(f"{package} {versions[package]}" for package in packages)
    return f"{machine['processor']}, {counted(machine['cores'], 'core')}, {machine['memory_gb']} GB; {software}"
