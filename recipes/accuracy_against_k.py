"""The figure of accuracy against k, on CIFAR-10 and SVHN. Run: python -m recipes.accuracy_against_k"""

from itertools import product

from lightning_gep.reporting.published import NAMES
from recipes import no_privacy
from recipes.data.image_sets import PRIVATE
from recipes.running.cells import Cell, Table

DATA = ("cifar10", "svhn")
KS = (500, 1000, 1500, 2000)

TABLE = Table(
    name="accuracy_against_k",
    title="Accuracy against the number of basis vectors",
    published="a figure without numbers",
    about=(
        "The paper shows curves without numbers, and does not say at which ε: here it is 8. In words it says that GEP "
        "is above B-GEP for every k, and less sensitive to it."
    ),
    cells=tuple(
        Cell(
            name=f"{data}_{mechanism}_k{k}",
            panel=f"{PRIVATE[data].title}, ε = 8",
            line=NAMES[mechanism],
            experiment=f"accuracy_against_k/{data}_{mechanism}",
            overrides=(f"mechanism.k={k}",),
            k=k,
        )
        for data, mechanism, k in product(DATA, ("bgep", "gep"), KS)
    ),
    baseline=tuple(no_privacy.TABLE.runs(["svhn", "cifar10"])),
)

if __name__ == "__main__":
    from recipes.running.command import main

    raise SystemExit(main(TABLE))
