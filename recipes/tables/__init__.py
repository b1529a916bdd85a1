"""All tables and figures made of training runs, in the order of the results page, and the order to run them in."""

from recipes.tables.ours import BEST, FIRST_EPOCHS, MNIST_EPSILON2, MNIST_LARGER_EPSILON, THRESHOLDS, TUNING
from recipes.tables.paper import (
    ACCURACY_AGAINST_K,
    ANCHORS,
    AUXILIARY_DATA,
    LINEAR_PROBE,
    NO_PRIVACY,
    RANDOM_BASIS,
    TABLE1,
)
from recipes.tables.shaped import CIFAR10_CNN, CIFAR10_TRIALS, NOT_PRIVATE, PROBE_TRIALS, compared_cells, first_runs
from recipes.tables.types import Comparison, Run

TABLES = (
    NO_PRIVACY,
    CIFAR10_CNN,
    CIFAR10_TRIALS,
    TABLE1,
    THRESHOLDS,
    MNIST_EPSILON2,
    MNIST_LARGER_EPSILON,
    TUNING,
    LINEAR_PROBE,
    PROBE_TRIALS,
    FIRST_EPOCHS,
    AUXILIARY_DATA,
    ANCHORS,
    ACCURACY_AGAINST_K,
    RANDOM_BASIS,
)

COMPARISONS = (
    Comparison("MNIST, ε = 2, the paper's settings", TABLE1, {"GP": "mnist_gp_eps2", "GEP": "mnist_gep_eps2"}, "mnist"),
    Comparison(
        "… with smaller thresholds",
        THRESHOLDS,
        {"GP": "mnist_gp_eps2_threshold_alone", "GEP": "mnist_gep_eps2_thresholds_alone"},
        "mnist",
    ),
    Comparison(
        "MNIST, ε = 2, our settings",
        MNIST_EPSILON2,
        {"GP": BEST["gp"], "GEP": BEST["gep"], "spectral": BEST["spectral"]},
        "mnist",
        panel="MNIST, CNN",
    ),
    *(
        Comparison(
            f"MNIST, ε = {e}, our settings",
            MNIST_LARGER_EPSILON,
            {"GP": f"gp_eps{e}", "GEP": f"gep_eps{e}"},
            "mnist",
            epsilon=e,
            panel="MNIST, CNN",
        )
        for e in (5, 8)
    ),
    *(
        Comparison(
            f"features of CIFAR-10, ε = {e:g}",
            LINEAR_PROBE,
            {"GP": f"gp_eps{name}", "GEP": f"gep_eps{name}_half", "spectral": f"spectral_eps{name}"},
            "linear_probe",
            epsilon=e,
            panel="features of CIFAR-10, linear",
        )
        for e, name in ((0.1, "0_1"), (0.5, "0_5"), (1, "1"), (2, "2"))
    ),
    *(
        Comparison(
            f"CIFAR-10, small network, ε = {e}",
            CIFAR10_CNN,
            compared_cells(e),
            NOT_PRIVATE.name,
            epsilon=e,
            panel="CIFAR-10, small CNN",
        )
        for e in (2, 8)
    ),
    Comparison(
        "SVHN (73 257 images), ε = 5, the paper's settings",
        TABLE1,
        {"GP": "svhn_ordinary_gp_eps5", "GEP": "svhn_ordinary_gep_eps5"},
        "svhn",
    ),
    Comparison(
        "CIFAR-10, ResNet20, ε = 2, the paper's settings",
        TABLE1,
        {"GP": "cifar10_gp_eps2", "GEP": "cifar10_tracked_gep_eps2", "spectral": "cifar10_spectral_eps2"},
        "cifar10",
    ),
)
"""Where mechanisms can be compared. The summary shows a setting once GP and another have run."""


def runs_in_order() -> list[Run]:
    """All runs, the most informative for their time first, those that take days last."""
    first = [
        *NO_PRIVACY.runs(["cifar10"]),
        *TABLE1.runs(["cifar10_gp_eps2"]),
        *MNIST_EPSILON2.runs([BEST["spectral"]]),
        *first_runs(),
        *TABLE1.runs(["cifar10_tracked_gep_eps2"]),
        *TABLE1.runs(["cifar10_spectral_eps2", "cifar10_tracked_bgep_eps2"]),
        *TABLE1.runs(["svhn_ordinary_*"]),
        *NO_PRIVACY.runs(),
        *TABLE1.runs(["mnist_*_eps2"], seeds=[0]),
        *MNIST_EPSILON2.runs(list(BEST.values()), seeds=[0]),
        *THRESHOLDS.runs(),
        *PROBE_TRIALS.runs(),
        *LINEAR_PROBE.runs(),
        *FIRST_EPOCHS.runs(),
        *TABLE1.runs(["mnist_*_eps2"]),
        *MNIST_EPSILON2.runs(),
        *MNIST_LARGER_EPSILON.runs(),
        *TUNING.runs(),
        *TABLE1.runs(["mnist_*"]),
    ]
    return list(dict.fromkeys([*first, *(run for table in TABLES for run in table.runs())]))
