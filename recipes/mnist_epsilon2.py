"""What is done better than in the paper, part by part: MNIST at ε = 2. Run: python -m recipes.mnist_epsilon2"""

import re
from pathlib import Path

from lightning_gep.cli.configs import config_directory
from lightning_gep.reporting.published import EPSILONS, RESULTS, figures_of
from recipes import no_privacy
from recipes.running.cells import Cell, Table

BEST = {"mnist_best": "gep", "mnist_best_bgep": "bgep", "mnist_best_gp": "gp"}
"""The experiments with our settings, and the mechanism whose published figure stands beside each."""
SEEDS = (0, 1, 2)


def experiments(directory: Path) -> list[Path]:
    """The best settings, and those that differ from others in one part, as far as there are files."""
    best = [directory / f"{name}.yaml" for name in BEST]
    return [*(path for path in best if path.is_file()), *sorted((directory / "mnist_epsilon2").glob("*.yaml"))]


def described(path: Path) -> str:
    """The first sentence of the file's comment; its name, if there is none."""
    lines = path.read_text("utf-8").splitlines()
    comment = [line.lstrip("# ") for line in lines if line.startswith("#") and "@package" not in line]
    sentence = re.split(r"\.(?:\s|$)", " ".join(comment))[0].replace("|", "/").strip()
    return sentence or path.stem


def cells(directory: Path) -> tuple[Cell, ...]:
    """A cell for every file."""
    return tuple(_cell(path, path.relative_to(directory).with_suffix("").as_posix()) for path in experiments(directory))


def _cell(path: Path, experiment: str) -> Cell:
    mechanism, paper, at = BEST.get(experiment), RESULTS["MNIST"], EPSILONS.index(2.0)
    return Cell(
        name=path.stem,
        panel="MNIST, ε = 2",
        line=described(path),
        experiment=experiment,
        seeds=SEEDS,
        published=None if mechanism is None else paper.accuracies[mechanism][at],
        published_epsilon=None if mechanism is None else paper.by_pld[mechanism][at],
    )


TABLE = Table(
    name="mnist_epsilon2",
    title="What we do better: MNIST at ε = 2",
    published=f"Table 1; GEP at ε = 2: {figures_of('gep', RESULTS['MNIST'], last=1)}",
    about=(
        "Published figures are of the paper's settings. Our network (by GP), learning rates, the residual's threshold "
        "and B-GEP's k were chosen on validation images taken out of the training set (the table after next); batch "
        "size, epochs, GEP's k, anchors and S = S₁ = 1 are those of a trial that others had judged on test images "
        "([how](tuning.md)). ε is that of one run, and does not count the choice. What the parts do: runs with the "
        "same settings have a standard deviation of up to 0.17 points, and neither the tracked basis, nor the optimal "
        "split, separate clipping, larger batches or PLD in place of RDP, which asks for 8 % more noise, moves the "
        "mean of three by more than 0.1. GEP is ahead of GP by 0.17, about as much as runs differ, and of B-GEP by "
        "0.28. The paper's network is 0.3 lower, in one run. Most of the distance from the published figures is made "
        "by the thresholds: with the paper's network, batches, schedule and learning rate they give GP 3.5 points "
        "more, and GEP 2.3 together with a tracked basis (the table above). On the machine that most of these rows "
        "ran on, a cold start and batches of 1000 took a fifth longer than an equal split and joint clipping did."
    ),
    headline="GEP with our settings",
    cells=cells(config_directory() / "experiment"),
    baseline=tuple(no_privacy.TABLE.runs(["mnist"])),
)

if __name__ == "__main__":
    from recipes.running.command import main

    raise SystemExit(main(TABLE))
