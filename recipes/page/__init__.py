"""The results page, written from the result files. The same results always give the same text."""

import textwrap
from collections import Counter
from pathlib import Path

from lightning_gep.reporting.text import counted
from recipes.measured.figures import FIGURES, data_title, measured_files
from recipes.measured.outside import shares
from recipes.page import plots
from recipes.page.accuracy import FRONT_PAGE, draw_accuracy, front_page
from recipes.page.summary import PICTURE, compared, summary
from recipes.page.table import section
from recipes.pate import page as pate
from recipes.running.outcome import RESULTS, Result, results_of
from recipes.tables import COMPARISONS, TABLES
from recipes.writing import WIDTH

PAGE = "README.md"
INTRODUCTION = """\
# The paper, reproduced

Written by `python -m recipes.results` from the files in `runs/`; a figure that is changed by hand fails a test. `make
results DATA=directory` runs what is missing, and `recipes/README.md` tells how to run one table.

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
ABOUT_FIGURES = (
    "Lengths are of means over a batch: of clipped gradients, embeddings and residuals, as they are released, unless a "
    "line says otherwise. Projection errors are those of the mean gradient before clipping, all parameters together. "
    "They are computed from training images without noise, so no ε covers them: that is for data that is public anyway."
)


def write_page(output: Path = RESULTS) -> None:
    """Write the page and its pictures; for the project's own results also the table of the README."""
    output.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        plots.draw(table, results_of(table, output), output)
    plots.draw_summary(compared(COMPARISONS, output), shares(output), output / PICTURE)
    draw_accuracy(output)
    (output / PAGE).write_text(page(output), "utf-8")
    if output == RESULTS:
        FRONT_PAGE.write_text(front_page(FRONT_PAGE.read_text("utf-8")), "utf-8")


def page(output: Path = RESULTS) -> str:
    """The whole page."""
    opening, legend = INTRODUCTION.split(SUMMARY)
    lines = [
        *opening.splitlines(),
        *summary(compared(COMPARISONS, output), shares(output)),
        "",
        *legend.strip().splitlines(),
    ]
    everything: list[Result] = []
    for table in TABLES:
        results = results_of(table, output)
        everything += [result for runs in results.values() for result in runs]
        lines += ["", *section(table, results, heading="## ")]
        name = plots.picture_name(table, results)
        lines += ["", f"![{table.title}]({name})"] if name else []
    lines += ["", *pate.section(output), *figure_section(output), "", *machine_section(everything)]
    return "\n".join(lines) + "\n"


def figure_section(output: Path) -> list[str]:
    """The figures measured on gradients, with their numbers."""
    lines = ["## Figures that are no training runs", "", *textwrap.wrap(ABOUT_FIGURES, WIDTH)]
    for figure in FIGURES:
        measured = measured_files(figure, output)
        words = f"By `python -m recipes.measured`. The paper has {figure.PUBLISHED}."
        lines += ["", f"### {figure.TITLE}", "", *textwrap.wrap(words, WIDTH, break_on_hyphens=False)]
        lines += [] if measured else ["", "Not run."]
        for picture, each in measured.items():
            lines += ["", f"![{figure.TITLE}: {data_title(each)}](figures/{picture.name})", ""]
            lines += [f"{data_title(each)}:", "", *figure.table(each).splitlines()]
    return lines


def machine_section(results: list[Result]) -> list[str]:
    """What the runs were made with."""
    words = Counter(_made_with(result) for result in results)
    changed = Counter(_made_with(result) for result in results if result["versions"]["git_dirty"])
    lines = [
        f"- {counted(count, 'run')}: {made_with}"
        + (f"; {changed[made_with]} with uncommitted changes" if made_with in changed else "")
        for made_with, count in sorted(words.items())
    ]
    return ["## Made with", "", *(lines or ["Nothing has been run yet."])]


def _made_with(result: Result) -> str:
    machine, versions = result["machine"], result["versions"]
    packages = ("python", "torch", "lightning", "opacus", "dp_accounting", "lightning_gep")
    software = ", ".join(f"{package} {versions[package]}" for package in packages)
    return f"{machine['processor']}, {counted(machine['cores'], 'core')}, {machine['memory_gb']} GB; {software}"
