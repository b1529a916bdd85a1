"""The first two epochs of CIFAR-10 at ε = 8, at the noise of all 200. Run: python -m recipes.first_epochs"""

from recipes.running.cells import Cell, Table

NOISE = 1.3895
"""The noise multiplier of a step that ε = 8 needs over 200 epochs, by PLD: `gep-plan` tells it."""
TWO_EPOCHS = (
    "privacy.epsilon=null",
    f"privacy.noise_multiplier={NOISE}",
    "trainer.max_epochs=2",
    "scheduler=constant",  # the learning rate is first cut after 100 epochs
)
TRACKED = ("mechanism.subspace=tracked", "mechanism.num_anchors=50")
SMALLER_RATE = "optimizer.lr=0.02"
EXPERIMENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gp": ("GP", "table1/cifar10_gp_eps8", ()),
    "gp_smaller_rate": ("GP, learning rate 0.02", "table1/cifar10_gp_eps8", (SMALLER_RATE,)),
    "bgep": ("B-GEP", "table1/cifar10_bgep_eps8", TRACKED),
    "bgep_smaller_rate": ("B-GEP, learning rate 0.02", "table1/cifar10_bgep_eps8", (*TRACKED, SMALLER_RATE)),
    "gep": ("GEP", "table1/cifar10_gep_eps8", TRACKED),
    "random_basis": ("GEP, random basis", "random_basis/cifar10", ()),
}

TABLE = Table(
    name="first_epochs",
    title="The first two epochs on CIFAR-10",
    published="nothing",
    about=(
        "What Table 1 does on CIFAR-10 at ε = 8 in its first two epochs of 200: the same noise, learning rate and k = "
        "1000. It is there to compare the mechanisms where all 200 epochs take days. The basis of GEP and B-GEP is "
        "tracked with 50 anchors a step, a quarter of the time of the paper's cold start. The paper has none of it. "
        "GEP and B-GEP add less noise than GP, and are behind it here; the rows with a fifth of the learning rate "
        "test whether its size is the reason."
    ),
    cells=tuple(
        Cell(name, "CIFAR-10, at the noise of ε = 8", line, experiment, overrides=(*TWO_EPOCHS, *basis))
        for name, (line, experiment, basis) in EXPERIMENTS.items()
    ),
)

if __name__ == "__main__":
    from recipes.running.command import main

    raise SystemExit(main(TABLE))
