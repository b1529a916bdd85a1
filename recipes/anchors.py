"""The appendix' table over m, the number of anchor gradients: CIFAR-10 at ε = 8. Run: python -m recipes.anchors"""

from lightning_gep.reporting.published import NAMES, RESULTS
from recipes import no_privacy
from recipes.running.cells import Cell, Table

PUBLISHED = {
    "bgep": {1000: (62.2, 0.26), 2000: (62.6, 0.24), 4000: (63.3, 0.27)},
    "gep": {1000: (74.6, 0.41), 2000: (74.8, 0.39), 4000: (75.2, 0.34)},
}
"""Mean and standard deviation of five runs, for each m."""
TRUE_EPSILON = {mechanism: values[-1] for mechanism, values in RESULTS["CIFAR-10"].by_pld.items()}

TABLE = Table(
    name="anchors",
    title="Appendix: how many anchor gradients",
    published=f"appendix; GEP at ε = 8 (true: {TRUE_EPSILON['gep']:g}) with m = 1000, 2000, 4000: 74.6, 74.8, 75.2",
    about="k = 1000; the public images are ImageNet's with random labels, and there are as many as anchors.",
    cells=tuple(
        Cell(
            name=f"{mechanism}_m{m}",
            panel=f"CIFAR-10, ε = 8, {NAMES[mechanism]}",
            line=f"m = {m}",
            experiment=f"anchors/{mechanism}_m{m}",
            published=accuracy,
            published_spread=spread,
            published_epsilon=TRUE_EPSILON[mechanism],
        )
        for mechanism, figures in PUBLISHED.items()
        for m, (accuracy, spread) in figures.items()
    ),
    baseline=tuple(no_privacy.TABLE.runs(["cifar10"])),
)

if __name__ == "__main__":
    from recipes.running.command import main

    raise SystemExit(main(TABLE))
