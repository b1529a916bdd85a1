"""Table 1 on MNIST with smaller thresholds, to test why it is lower here. Run: python -m recipes.thresholds"""

from recipes import no_privacy
from recipes.running.cells import TRACKED, Cell, Table

THRESHOLD = "mechanism.clip_norm=1.0"
THRESHOLDS = ("mechanism.clip_embedding=1.0", "mechanism.clip_residual=0.5")
LEARNING_RATE = "optimizer.lr=0.5"
"""That of `mnist_best`, which has batches of 4000, in proportion to the batch."""
CHANGED = {
    "mnist_gp_eps2": ("GP, S = 1, learning rate 0.5", (THRESHOLD, LEARNING_RATE)),
    "mnist_gp_eps2_threshold_alone": ("GP, S = 1, learning rate 0.1 as in Table 1", (THRESHOLD,)),
    "mnist_gp_eps2_rate_alone": ("GP, S = 10 as in Table 1, learning rate 0.5", (LEARNING_RATE,)),
    "mnist_gep_eps2": (
        "GEP, S₁ = 1, S₂ = 0.5, learning rate 0.5, tracked basis",
        (*THRESHOLDS, LEARNING_RATE, *TRACKED),
    ),
    "mnist_gep_eps2_thresholds_alone": (
        "GEP, S₁ = 1, S₂ = 0.5, learning rate 0.1 as in Table 1, tracked basis",
        (*THRESHOLDS, *TRACKED),
    ),
}

TABLE = Table(
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
    headline=CHANGED["mnist_gep_eps2_thresholds_alone"][0],
    cells=tuple(
        Cell(name, "MNIST, ε = 2", line, f"table1/{'_'.join(name.split('_')[:3])}", overrides=changed)
        for name, (line, changed) in CHANGED.items()
    ),
    baseline=tuple(no_privacy.TABLE.runs(["mnist"])),
)

if __name__ == "__main__":
    from recipes.running.command import main

    raise SystemExit(main(TABLE))
