"""Tables of our own: what we do better than the paper, how settings were chosen, and why figures differ."""

import re
from itertools import product
from pathlib import Path

from lightning_gep.cli.configs import config_directory
from lightning_gep.reporting.published import EPSILONS, RESULTS
from lightning_gep.reporting.text import mechanism_name
from recipes.tables.paper import baseline
from recipes.tables.types import TRACKED, Cell, Table, figures_of

PAPER = RESULTS["MNIST"]
BEST = {
    "gep": "mnist_best",
    "bgep": "mnist_best_bgep",
    "gp": "mnist_best_gp",
    "spectral": "mnist_best_spectral",
}
"""The experiment with our settings for each mechanism."""

LEARNING_RATE = "optimizer.lr=0.5"
"""The learning rate of `mnist_best`, scaled from batches of 4000 to 1000."""
CLIP, CLIPS = "mechanism.clip_norm=1.0", ("mechanism.clip_embedding=1.0", "mechanism.clip_residual=0.5")
THRESHOLD_CELLS = {
    "mnist_gp_eps2": ("GP, S = 1, learning rate 0.5", (CLIP, LEARNING_RATE)),
    "mnist_gp_eps2_threshold_alone": ("GP, S = 1, learning rate 0.1 as in Table 1", (CLIP,)),
    "mnist_gp_eps2_rate_alone": ("GP, S = 10 as in Table 1, learning rate 0.5", (LEARNING_RATE,)),
    "mnist_gep_eps2": (
        "GEP, S₁ = 1, S₂ = 0.5, learning rate 0.5, tracked basis",
        (*CLIPS, LEARNING_RATE, *TRACKED),
    ),
    "mnist_gep_eps2_thresholds_alone": (
        "GEP, S₁ = 1, S₂ = 0.5, learning rate 0.1 as in Table 1, tracked basis",
        (*CLIPS, *TRACKED),
    ),
}

THRESHOLDS = Table(
    name="thresholds",
    title="Table 1 on MNIST with smaller thresholds",
    published="nothing",
    about=(
        "GP and GEP are 0.9 and 0.6 points below the published figures in Table 1, the means of three runs. The paper "
        "does not tell the sizes of its network for MNIST. In ours, with S = 10, the mean of the clipped gradients is "
        "0.17 long after two epochs (1.2 before clipping) and the noise of a step 2.4 (the figures at the end of this "
        "page), so S = 10 is too large for it. These rows of Table 1 test that: they have the thresholds of "
        "`mnist_best`, chosen for another network, or its learning rate in proportion to the batch, or both; network, "
        "batches of 1000, 50 epochs, schedule and weight decay stay the paper's. For GP the threshold is the reason: "
        "with it, and nothing else changed, GP has 3.5 points more and is 2.7 above the published figure. GEP has 2.3 "
        "more and is 1.7 above, but its basis differs as well: it is tracked with 50 anchors a step here, which takes "
        "a third of the time of the paper's cold start (with our settings the two are as good). One run each with the "
        "changes. The larger learning rate takes 1.5 and 0.9 points away again, and with S = 10 nothing is learnt at "
        "it. The authors also picked the best checkpoint on the test set; in our runs of Table 1 at ε = 2 that would "
        "be 0.1 points more at the most. B-GEP is the other way round: 2.9 points above the published figure, and 0.3 "
        "above GEP, with runs that differ by more. It adds no noise outside the subspace, where GEP has half of its "
        "own at S₂ = 2; whether that is the reason was not tested."
    ),
    headline=THRESHOLD_CELLS["mnist_gep_eps2_thresholds_alone"][0],
    cells=tuple(
        Cell(name, "MNIST, ε = 2", line, f"table1/{'_'.join(name.split('_')[:3])}", overrides=changed)
        for name, (line, changed) in THRESHOLD_CELLS.items()
    ),
    baseline=baseline("mnist"),
)


def described(path: Path) -> str:
    """The first sentence of the comment in an experiment file; the file's name if there is none."""
    lines = path.read_text("utf-8").splitlines()
    comment = [line.lstrip("# ") for line in lines if line.startswith("#") and "@package" not in line]
    sentence = re.split(r"\.(?:\s|$)", " ".join(comment))[0].replace("|", "/").strip()
    return sentence or path.stem


def cells_of_experiments(directory: Path) -> tuple[Cell, ...]:
    """The experiments with our settings, then those in `mnist_epsilon2/`, which change one part of them."""
    best = {directory / f"{name}.yaml": mechanism for mechanism, name in BEST.items()}
    paths = [*(path for path in best if path.is_file()), *sorted((directory / "mnist_epsilon2").glob("*.yaml"))]
    published = {path: mechanism for path, mechanism in best.items() if mechanism in PAPER.accuracies}
    at = EPSILONS.index(2.0)
    return tuple(
        Cell(
            name=path.stem,
            panel="MNIST, ε = 2",
            line=described(path),
            experiment=path.relative_to(directory).with_suffix("").as_posix(),
            seeds=(0, 1, 2),
            published=PAPER.accuracies[published[path]][at] if path in published else None,
            published_epsilon=PAPER.by_pld[published[path]][at] if path in published else None,
        )
        for path in paths
    )


MNIST_EPSILON2 = Table(
    name="mnist_epsilon2",
    title="What we do better: MNIST at ε = 2",
    published=f"Table 1; GEP at ε = 2: {figures_of('gep', PAPER, last=1)}",
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
    cells=cells_of_experiments(config_directory() / "experiment"),
    baseline=baseline("mnist"),
)


def _larger_epsilon(epsilon: float, mechanism: str) -> Cell:
    at = EPSILONS.index(epsilon)
    return Cell(
        name=f"{mechanism}_eps{epsilon:g}",
        panel=f"MNIST, ε = {epsilon:g}",
        line=f"{mechanism_name(mechanism)} with our settings",
        experiment=BEST[mechanism],
        overrides=(f"privacy.epsilon={epsilon}",),
        published=PAPER.accuracies[mechanism][at],
        published_epsilon=PAPER.by_pld[mechanism][at],
    )


MNIST_LARGER_EPSILON = Table(
    name="mnist_larger_epsilon",
    title="What we do better: MNIST at ε = 5 and 8",
    published="Table 1; GEP at ε = 5, 8: " + figures_of("gep", PAPER, first=1),
    about=(
        "`mnist_best` and `mnist_best_gp` at a larger ε, with everything else as it was chosen at ε = 2: nothing was "
        "tuned for these rows, so they are 450 steps where the paper has 6000 and 12 000."
    ),
    headline="GEP with our settings",
    cells=tuple(_larger_epsilon(*which) for which in product(EPSILONS[1:], ("gp", "gep"))),
    baseline=baseline("mnist"),
)

HELD_OUT = "data.validation_size=5000"


def _trial(mechanism: str, name: str, line: str, *overrides: str) -> Cell:
    label = f"{mechanism_name(mechanism)}, {line}"
    return Cell(f"{mechanism}_{name}", "MNIST, ε = 2", label, BEST[mechanism], overrides=(HELD_OUT, *overrides))


TUNING = Table(
    name="tuning",
    title="How our settings for MNIST were chosen",
    published="nothing",
    about=(
        "Each mechanism by itself, on 5000 training images that were held out: **validation** is the accuracy on "
        "them, one run each, and no test image had a say. They have a standard error of 0.2 points, and runs with "
        "other noise differ by about as much. What else was tried, and what was not chosen here, is told "
        "[elsewhere](tuning.md)."
    ),
    headline="GEP, S₂ = 0.5, learning rate 2",
    judged_by="validation_accuracy",
    follows="validation_accuracy",
    cells=(
        *(
            _trial(mechanism, f"lr{rate}", f"learning rate {rate}", f"optimizer.lr={rate}")
            for mechanism, rate in product(("gp", "spectral"), (1, 2, 3))
        ),
        *(
            _trial(
                "bgep",
                f"k{k}_lr{rate}",
                f"k = {k}, learning rate {rate}",
                f"optimizer.lr={rate}",
                f"mechanism.k={k}",
            )
            for k, rate in ((500, 2), (1000, 1), (1000, 2), (1000, 4), (2000, 2))
        ),
        *(
            _trial(
                "gep",
                f"lr{rate}",
                f"S₂ = {residual}, learning rate {rate}",
                f"optimizer.lr={rate}",
                f"mechanism.clip_residual={residual}",
            )
            for rate, residual in ((1, 0.4), (2, 0.5), (3, 0.6))
        ),
    ),
)

NOISE = 1.3895
"""The noise multiplier that ε = 8 needs over 200 epochs of CIFAR-10, by PLD, as `gep-plan` prints it."""
TWO_EPOCHS = (
    "privacy.epsilon=null",
    f"privacy.noise_multiplier={NOISE}",
    "trainer.max_epochs=2",
    "scheduler=constant",  # the learning rate is first cut after 100 epochs
)
FIRST_EPOCHS_CELLS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gp": ("GP", "table1/cifar10_gp_eps8", ()),
    "bgep": ("B-GEP", "table1/cifar10_bgep_eps8", TRACKED),
    "bgep_smaller_rate": ("B-GEP, learning rate 0.02", "table1/cifar10_bgep_eps8", (*TRACKED, "optimizer.lr=0.02")),
    "gep": ("GEP", "table1/cifar10_gep_eps8", TRACKED),
    "random_basis": ("GEP, random basis", "random_basis/cifar10", ()),
}

FIRST_EPOCHS = Table(
    name="first_epochs",
    title="The first two epochs on CIFAR-10",
    published="nothing",
    about=(
        "What Table 1 does on CIFAR-10 at ε = 8 in its first two epochs of 200: the same noise, learning rate and k = "
        "1000. It is there to compare the mechanisms where all 200 epochs take days. The basis of GEP and B-GEP is "
        "tracked with 50 anchors a step, a quarter of the time of the paper's cold start. The paper has none of it. "
        "GEP and B-GEP add less noise than GP and are not ahead of it here, one run each. Noise may count less in "
        "these steps than later: it has few of them to add up in, and the mean of the clipped gradients falls from "
        "2.3 to 0.8 within them (the figures at the end of this page; later steps were not measured). Why B-GEP is so "
        "far behind was looked into, one run each: with a fifth of the learning rate it leaves chance within ten "
        "steps, where it stood still for 20, and ends 4 points higher, so a part of it are steps that are too long. "
        "The rest may be what B-GEP leaves out: GEP, which releases the residual as well, with more noise on its "
        "embedding, is ahead of both, although the mean of the clipped residuals is short (0.1 against 2.3)."
    ),
    cells=tuple(
        Cell(name, "CIFAR-10, at the noise of ε = 8", line, experiment, overrides=(*TWO_EPOCHS, *basis))
        for name, (line, experiment, basis) in FIRST_EPOCHS_CELLS.items()
    ),
    baseline=baseline("cifar10"),
)
