"""The appendix' table of a private linear layer on features. Run: python -m recipes.linear_probe"""

from lightning_gep.report.published import NAMES
from recipes.running.cells import Cell, Table

EPSILONS = (0.1, 0.5, 1.0, 2.0)
PUBLISHED = {
    "gp": ((88.2, 0.16), (91.1, 0.17), (93.2, 0.19), (93.4, 0.12)),
    "bgep": ((91.0, 0.07), (92.9, 0.03), (93.1, 0.10), (93.2, 0.08)),
    "gep": ((90.9, 0.19), (93.5, 0.06), (94.3, 0.09), (94.8, 0.06)),
}
"""Mean and standard deviation of five runs, at each ε."""
SEEDS = (0, 1, 2, 3, 4)

TABLE = Table(
    name="linear_probe",
    title="Appendix: a linear layer on features of CIFAR-10",
    published="appendix; GEP at ε = 0.1, 0.5, 1, 2: 90.9, 93.5, 94.3, 94.8",
    about=(
        "The paper's features are those of a ResNet152 trained by SimCLR, 4096 numbers for each image; ours are 1280 "
        "of EfficientNet-Lite0. So compare GEP with GP and B-GEP, not with the published figure beside it. Without "
        "privacy the paper reaches 96.3 %. It tells neither batch size nor steps of its best runs, so their true ε is "
        "not known."
    ),
    cells=tuple(
        Cell(
            name=(name := f"{mechanism}_eps{epsilon:g}".replace(".", "_")),
            panel=f"ε = {epsilon:g}",
            line=NAMES[mechanism],
            experiment=f"linear_probe/{name}",
            seeds=SEEDS,
            published=figures[at][0],
            published_spread=figures[at][1],
        )
        for at, epsilon in enumerate(EPSILONS)
        for mechanism, figures in PUBLISHED.items()
    ),
)

if __name__ == "__main__":
    from recipes.running.command import main

    raise SystemExit(main(TABLE))
