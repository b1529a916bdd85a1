"""Tables of our own: what we do better than the paper, how settings were chosen, and why figures differ."""

from itertools import product
from typing import Any

from lightning_gep.reporting.text import mechanism_name
from recipes.published import EPSILONS, RESULTS
from recipes.tables.paper import baseline
from recipes.tables.types import TRACKED, Cell, Table

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
    cells=tuple(
        Cell(name, "MNIST, ε = 2", line, f"table1/{'_'.join(name.split('_')[:3])}", overrides=changed)
        for name, (line, changed) in THRESHOLD_CELLS.items()
    ),
    baseline=baseline("mnist"),
)


LINES = {
    "gep": "GEP with our settings",
    "bgep": "B-GEP, tuned by itself",
    "gp": "GP, tuned with the same care",
    "spectral": "Spectral, preconditioned, tuned with the same care",
}
ABLATIONS = {
    "batch_1000": "GEP, batches of 1000, learning rate in proportion",
    "cold_start": "GEP, the paper's cold start on 2000 anchors a step",
    "equal_split": "GEP, the same σ for both parts",
    "joint_clipping": "GEP, joint clipping",
    "paper_network": "GEP, the paper's network",
    "rdp": "GEP, noise calibrated by RDP",
}
"""What changes one part of GEP with our settings: the experiments in `mnist_epsilon2/`."""
WITH_PINK_NOISE = {
    "gep": "GEP with our settings, pink noise for public images",
    "spectral": "Spectral with the same settings, pink noise for public images",
}
SEEDS = (0, 1, 2)


def _ours(mechanism: str, name: str, line: str, epsilon: float, **cell: Any) -> Cell:
    """A mechanism with our settings, beside the paper's figure if it has one."""
    at, published = EPSILONS.index(epsilon), PAPER.accuracies.get(mechanism)
    beside = {"published": published[at], "published_epsilon": PAPER.by_pld[mechanism][at]} if published else {}
    return Cell(name, f"MNIST, ε = {epsilon:g}", line, BEST[mechanism], **beside, **cell)


MNIST_EPSILON2 = Table(
    name="mnist_epsilon2",
    title="What we do better: MNIST at ε = 2",
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
    cells=(
        *(_ours(mechanism, BEST[mechanism], line, 2.0, seeds=SEEDS) for mechanism, line in LINES.items()),
        *(Cell(name, "MNIST, ε = 2", line, f"mnist_epsilon2/{name}", seeds=SEEDS) for name, line in ABLATIONS.items()),
        *(
            Cell(f"{mechanism}_synthetic", "MNIST, ε = 2", line, BEST[mechanism], overrides=("aux=synthetic",))
            for mechanism, line in WITH_PINK_NOISE.items()
        ),
    ),
    baseline=baseline("mnist"),
)


MNIST_LARGER_EPSILON = Table(
    name="mnist_larger_epsilon",
    title="What we do better: MNIST at ε = 5 and 8",
    about=(
        "`mnist_best` and `mnist_best_gp` at a larger ε, with everything else as it was chosen at ε = 2: nothing was "
        "tuned for these rows, so they are 450 steps where the paper has 6000 and 12 000."
    ),
    cells=tuple(
        _ours(
            mechanism,
            f"{mechanism}_eps{epsilon:g}",
            f"{mechanism_name(mechanism)} with our settings",
            epsilon,
            overrides=(f"privacy.epsilon={epsilon}",),
        )
        for epsilon, mechanism in product(EPSILONS[1:], ("gp", "gep"))
    ),
    baseline=baseline("mnist"),
)

HELD_OUT = "data.validation_size=5000"


def _trial(mechanism: str, name: str, line: str, *overrides: str) -> Cell:
    label = f"{mechanism_name(mechanism)}, {line}"
    return Cell(f"{mechanism}_{name}", "MNIST, ε = 2", label, BEST[mechanism], overrides=(HELD_OUT, *overrides))


TUNING = Table(
    name="tuning",
    title="How our settings for MNIST were chosen",
    about=(
        "Each mechanism by itself, on 5000 training images that were held out: **validation** is the accuracy on "
        "them, one run each, and no test image had a say. They have a standard error of 0.2 points, and runs with "
        "other noise differ by about as much. What else was tried, and what was not chosen here, is told "
        "[elsewhere](tuning.md)."
    ),
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
    about=(
        "What Table 1 does on CIFAR-10 at ε = 8 in its first two epochs of 200: the same noise, learning rate and k = "
        "1000. It compares the mechanisms where all 200 epochs take days. The basis of GEP and B-GEP is tracked with "
        "50 anchors a step, a quarter of the time of the paper's cold start. The paper has none of it."
    ),
    cells=tuple(
        Cell(name, "CIFAR-10, at the noise of ε = 8", line, experiment, overrides=(*TWO_EPOCHS, *basis))
        for name, (line, experiment, basis) in FIRST_EPOCHS_CELLS.items()
    ),
    baseline=baseline("cifar10"),
)
