"""The paper's test accuracies (Yu et al., ICLR 2021) from `published.json`, and the ε behind them."""

from dataclasses import dataclass
from pathlib import Path

from lightning_gep.privacy.files import read_json
from lightning_gep.reporting.text import mechanism_name, short

EPSILONS = (2.0, 5.0, 8.0)
"""The ε that the paper states for every curve."""

PATE_NOTE = "The ε of PATE depends on the private data, so the paper says that it cannot be released as it is."


@dataclass(frozen=True)
class Published:
    """The paper's results on one dataset, in percent of test accuracy at ε = 2, 5 and 8.

    `by_pld` is what the noise of the authors' code gives by privacy loss distributions, at the same δ, if batches are
    Poisson samples and embedding and residual share one sample. B-GEP releases one part, with the noise of GP. The σ of
    that code comes from Rényi DP of orders 2 to 32, and is searched for in steps of 0.01.
    """

    delta: float
    not_private: float
    accuracies: dict[str, list[float]]
    by_pld: dict[str, list[float]]
    remark: str


RESULTS = {data: Published(**found) for data, found in read_json(Path(__file__).with_suffix(".json")).items()}


def remarks(results: Published) -> list[str]:
    """What a reader has to know before comparing with the paper."""
    known = [
        f"{mechanism_name(kind)} {claimed:g} → {true:g}"
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
        results.remark,
    ]
    return [note for note in notes if note]
