"""The row without privacy that every table is read against. Run: python -m recipes.no_privacy"""

from lightning_gep.reporting.published import RESULTS
from recipes.data.image_sets import PRIVATE
from recipes.running.cells import Cell, Table

ORDINARY_SVHN, WITHOUT_EXTRA = "73 257", ("data.extra=false",)
"""Images of SVHN without its `extra` part."""
LINE = "no privacy"


def _cell(data: str, panel: str, overrides: tuple[str, ...] = ()) -> Cell:
    published = RESULTS[PRIVATE[data].title].not_private
    return Cell(data, panel, LINE, f"no_privacy/{data}", overrides=overrides, published=published)


TABLE = Table(
    name="no_privacy",
    title="Without privacy",
    published="in the text: MNIST 99.1, SVHN 95.9, CIFAR-10 90.4; linear layer 96.3",
    about=(
        "Plain Lightning with the network, optimizer and learning rate of the private runs (`mechanism=none`): what "
        "privacy costs is the distance to these rows, and a network that cannot learn here proves nothing below. No "
        "augmentation, and fewer epochs and smaller batches than a record would take. The paper does not tell how it "
        "trained without privacy; its SVHN is the extended one, and its linear layer has another network's features."
    ),
    cells=(
        _cell("mnist", "MNIST"),
        _cell("svhn", f"SVHN ({ORDINARY_SVHN} images)", WITHOUT_EXTRA),
        _cell("cifar10", "CIFAR-10"),
        Cell("linear_probe", "features of CIFAR-10", LINE, "no_privacy/linear_probe", published=96.3),
    ),
    headline=LINE,
)

if __name__ == "__main__":
    from recipes.running.command import main

    raise SystemExit(main(TABLE))
