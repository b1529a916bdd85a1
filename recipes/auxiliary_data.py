"""The appendix' table of public images: GEP on CIFAR-10 at ε = 8. Run: python -m recipes.auxiliary_data"""

from lightning_gep.reporting.published import RESULTS
from recipes import no_privacy
from recipes.running.cells import Cell, Table

PUBLISHED = {
    "test_samples_true_labels": ("test images, true labels", 72.9, 0.31),
    "test_samples": ("test images, random labels", 75.1, 0.42),
    "cifar100": ("CIFAR-100, random labels", 74.7, 0.46),
    "imagenet": ("ImageNet, random labels", 74.8, 0.39),
}
"""Mean and standard deviation of five runs."""
TRUE_EPSILON = RESULTS["CIFAR-10"].by_pld["gep"][-1]

TABLE = Table(
    name="auxiliary_data",
    title="Appendix: which public images",
    published=f"appendix; GEP at ε = 8 (true: {TRUE_EPSILON:g}): 72.9 to 75.1",
    about="GEP with 2000 public images, m = 2000 and k = 1000. All rows are tested on the same 8000 test images.",
    headline="ImageNet, random labels",
    cells=tuple(
        Cell(
            name=name,
            panel="CIFAR-10, ε = 8",
            line=line,
            experiment=f"auxiliary_data/{name}",
            published=accuracy,
            published_spread=spread,
            published_epsilon=TRUE_EPSILON,
        )
        for name, (line, accuracy, spread) in PUBLISHED.items()
    ),
    baseline=tuple(no_privacy.TABLE.runs(["cifar10"])),
)

if __name__ == "__main__":
    from recipes.running.command import main

    raise SystemExit(main(TABLE))
