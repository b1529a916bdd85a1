"""What the GEP paper reports (Yu et al., ICLR 2021, the table of test accuracies), and the ε behind it."""

from dataclasses import dataclass

from lightning_gep.reporting.text import short

EPSILONS = (2.0, 5.0, 8.0)
"""The ε that the paper states for every curve."""

NAMES = {"gep": "GEP", "bgep": "B-GEP", "gp": "GP", "pate": "PATE"}

PATE_NOTE = "The ε of PATE depends on the private data, so the paper says that it cannot be released as it is."


@dataclass(frozen=True)
class Published:
    """The paper's results on one data set, in percent of test accuracy at ε = 2, 5 and 8.

    `by_pld` is what the noise of the authors' code gives by privacy loss distributions, at the same δ, if batches are
    Poisson samples and embedding and residual share one sample. B-GEP releases one part, with the noise of GP. The σ of
    that code comes from Rényi DP of orders 2 to 32, and is searched for in steps of 0.01.
    """

    data: str
    delta: float
    not_private: float
    accuracies: dict[str, tuple[float, float, float]]
    by_pld: dict[str, tuple[float, float, float]]
    remark: str = ""


RESULTS = {
    results.data: results
    for results in (
        Published(
            "MNIST",
            delta=1e-5,
            not_private=99.1,
            accuracies={
                "gep": (96.3, 97.9, 98.4),
                "bgep": (93.1, 94.5, 95.9),
                "gp": (94.7, 96.8, 97.2),
                "pate": (98.5, 98.5, 98.6),
            },
            by_pld={"gep": (1.60, 4.44, 7.37), "gp": (1.54, 4.09, 6.71), "bgep": (1.54, 4.09, 6.71)},
        ),
        Published(
            "SVHN",
            delta=1e-6,
            not_private=95.9,
            accuracies={
                "gep": (92.3, 94.7, 95.1),
                "bgep": (88.5, 91.8, 92.3),
                "gp": (87.1, 91.3, 91.6),
                "pate": (80.7, 91.6, 91.6),
            },
            by_pld={"gep": (3.06, 10.55, 18.44), "gp": (0.81, 3.46, 5.76), "bgep": (0.81, 3.46, 5.76)},
            remark="The paper's SVHN is the extended training set, 604 388 images.",
        ),
        Published(
            "CIFAR-10",
            delta=1e-5,
            not_private=90.4,
            accuracies={
                "gep": (59.7, 70.1, 74.9),
                "bgep": (50.3, 59.5, 63.0),
                "gp": (43.6, 52.2, 56.4),
                "pate": (34.2, 41.9, 43.6),
            },
            by_pld={"gep": (1.59, 4.40, 7.28), "gp": (1.55, 4.09, 6.72), "bgep": (1.55, 4.09, 6.72)},
            remark="A footnote of the paper says that GP reaches about 62 % at ε = 8 when it is tuned.",
        ),
    )
}


def figures_of(mechanism: str, results: Published, first: int = 0, last: int = len(EPSILONS)) -> str:
    """Accuracies at some of the claimed ε, with what those really were."""
    accuracies, true = (
        ", ".join(f"{value:g}" for value in values[first:last])
        for values in (results.accuracies[mechanism], results.by_pld[mechanism])
    )
    return f"{accuracies} (true ε: {true})"


def remarks(results: Published) -> list[str]:
    """What a reader has to know before comparing with the paper."""
    known = [
        f"{NAMES[kind]} {claimed:g} → {true:g}"
        for kind, values in results.by_pld.items()
        for claimed, true in zip(EPSILONS, values, strict=True)
    ]
    notes = [
        "The curves marked “paper” are those of Yu et al. (ICLR 2021) at the ε they claimed, "
        f"δ = {short(results.delta)}. The noise of the authors' code really gives, by privacy loss distributions (PLD) "
        f"and if batches had been Poisson samples: {', '.join(known)}.",
        "The authors' code shuffled its batches and picked the best checkpoint on the test set. "
        f"Without privacy the paper reaches {results.not_private:g} %.",
        PATE_NOTE,
    ]
    return [*notes, results.remark] if results.remark else notes
