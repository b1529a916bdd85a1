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
from recipes.running.comparison import Pair

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

PAIRS = (
    Pair("MNIST, ε = 2, the paper's settings", table1.TABLE, "mnist_gp_eps2", "mnist_gep_eps2", "mnist"),
    Pair(
        "… with smaller thresholds",
        thresholds.TABLE,
        "mnist_gp_eps2_threshold_alone",
        "mnist_gep_eps2_thresholds_alone",
        "mnist",
    ),
    Pair("MNIST, ε = 2, our settings", mnist_epsilon2.TABLE, "mnist_best_gp", "mnist_best", "mnist"),
    Pair("MNIST, ε = 5, our settings", mnist_larger_epsilon.TABLE, "gp_eps5", "gep_eps5", "mnist"),
    Pair("MNIST, ε = 8, our settings", mnist_larger_epsilon.TABLE, "gp_eps8", "gep_eps8", "mnist"),
    *(
        Pair(
            f"features of CIFAR-10, ε = {epsilon.replace('_', '.')}",
            linear_probe.TABLE,
            f"gp_eps{epsilon}",
            f"gep_eps{epsilon}_half",
            "linear_probe",
        )
        for epsilon in ("0_1", "0_5", "1", "2")
    ),
    Pair(
        "SVHN (73 257 images), ε = 5, the paper's settings",
        table1.TABLE,
        "svhn_ordinary_gp_eps5",
        "svhn_ordinary_gep_eps5",
        "svhn",
    ),
    Pair(
        "CIFAR-10, ε = 2, the paper's settings", table1.TABLE, "cifar10_gp_eps2", "cifar10_tracked_gep_eps2", "cifar10"
    ),
)
"""GP and GEP where they can be compared; a pair stands in the summary once both are run."""


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
