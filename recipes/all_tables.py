"""Every table and figure that training runs give, in the order of the page; and which run is worth more than which."""

from recipes import (
    accuracy_against_k,
    anchors,
    auxiliary_data,
    first_epochs,
    linear_probe,
    mnist_epsilon2,
    mnist_larger_epsilon,
    no_privacy,
    random_basis,
    table1,
    thresholds,
    tuning,
)
from recipes.running.cells import Run

TABLES = (
    no_privacy.TABLE,
    table1.TABLE,
    thresholds.TABLE,
    mnist_epsilon2.TABLE,
    mnist_larger_epsilon.TABLE,
    tuning.TABLE,
    linear_probe.TABLE,
    first_epochs.TABLE,
    auxiliary_data.TABLE,
    anchors.TABLE,
    accuracy_against_k.TABLE,
    random_basis.TABLE,
)


def runs_in_order() -> list[Run]:
    """All runs: those first that say most for their time, those that take days last."""
    first = [
        *no_privacy.TABLE.runs(["cifar10"]),
        *table1.TABLE.runs(["cifar10_gp_eps2"]),
        *table1.TABLE.runs(["cifar10_tracked_gep_eps2"]),
        *table1.TABLE.runs(["cifar10_tracked_bgep_eps2"]),
        *table1.TABLE.runs(["svhn_ordinary_*"]),
        *no_privacy.TABLE.runs(),
        *table1.TABLE.runs(["mnist_*_eps2"], seeds=[0]),
        *mnist_epsilon2.TABLE.runs(mnist_epsilon2.BEST, seeds=[0]),
        *thresholds.TABLE.runs(),
        *linear_probe.TABLE.runs(),
        *first_epochs.TABLE.runs(),
        *table1.TABLE.runs(["mnist_*_eps2"]),
        *mnist_epsilon2.TABLE.runs(),
        *mnist_larger_epsilon.TABLE.runs(),
        *tuning.TABLE.runs(),
        *table1.TABLE.runs(["mnist_*"]),
    ]
    return list(dict.fromkeys([*first, *(run for table in TABLES for run in table.runs())]))
