"""The appendix' figure of random basis vectors: their projection error. Run: python -m recipes.random_basis"""

from itertools import product

from recipes import no_privacy
from recipes.accuracy_against_k import DATA, KS
from recipes.data.image_sets import PRIVATE
from recipes.running.cells import Cell, Table

TABLE = Table(
    name="random_basis",
    title="Appendix: the projection error of random basis vectors",
    published="appendix; above 95 % throughout",
    about=(
        "GEP on a random subspace. What counts is the projection error over training, which the paper puts above 95 % "
        "throughout, for every k. It is a function of private records, and logged because these data sets are public."
    ),
    headline="random basis",
    cells=tuple(
        Cell(
            name=f"{data}_k{k}",
            panel=f"{PRIVATE[data].title}, ε = 8",
            line="random basis",
            experiment=f"random_basis/{data}",
            overrides=(f"mechanism.k={k}",),
            k=k,
        )
        for data, k in product(DATA, KS)
    ),
    follows="nonprivate_projection_error",
    baseline=tuple(no_privacy.TABLE.runs(["svhn", "cifar10"])),
)

if __name__ == "__main__":
    from recipes.running.command import main

    raise SystemExit(main(TABLE))
