"""Every sentence on a card: the guarantee, what ε covers and what it does not, trust, and randomness.

Lines of a list begin with their topic and a colon. Nothing here is computed from records.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_gep.privacy.rounding import Figure, shown_delta, shown_epsilon

Card = Mapping[str, Any]

UNIT = "one training record"
NEIGHBOURING_RELATION = "adding or removing one record"
DEFINITION = "(ε, δ)-differential privacy"
TRUST_MODEL = (
    "central: whoever trains sees the records and is trusted with them, with this software and with its random "
    "numbers. The attacker may see the weights after every step, and know all other records and everything on this "
    "card, but neither which records a step drew nor the noise."
)
COMPOSITION = (
    "Every step is one Gaussian mechanism on one Poisson subsample, for embedding and residual together; the steps "
    "compose adaptively, and each is recorded on disk before its noise is drawn."
)
UTILITY = (
    "not on this card: accuracy is measured on records that ε does not protect. Clipping and noise cost rare groups "
    "more than common ones; compare accuracy by group before relying on an average."
)
METHODS = {
    "gep": "Gradient Embedding Perturbation (GEP): embedding and residual of each gradient, clipped, with noise",
    "bgep": "Biased GEP: only the embedding of each gradient, clipped, with noise",
    "gp": "Gradient perturbation (DP-SGD): each gradient, clipped, with noise",
    "spectral": "Spectral perturbation: each gradient, in coordinates that public data determines, clipped, with noise",
}
STATUS = {
    "training": "In progress or killed; figures as of the last checkpoint",
    "finished": "Training finished",
    "stopped": "Training stopped early, by an error or an interruption",
}
RULES = {
    "single": "a single run",
    "composition": "all listed runs, composed",
    "repeat_and_select": "a random number of runs, of which the best was selected",
}
NOT_PRIVATE = "Not private"
NOT_COUNTED = "One run of a sweep whose cost is not counted yet"
CONTINUED = " This run continued after that was counted."
LEFT_UNPROTECTED = "Values computed from training records left without protection (log_nonprivate): see “Not covered”."
KEEP_TO_YOURSELF = (
    "This card lists every run. The figure above holds only while nothing about the other runs is published, not even "
    "their number: publish the selected run and its own card, never this one."
)
# Cards on disk hold these reasons, and later fits of a run compare with them: do not reword.
NO_NOISE = "no noise is added"
INFINITE_CLIP = "a clipping threshold is infinite, so one record can change a sum without limit"
NO_BOUND = "the accountant proves no finite ε"
SEEDED = "sampling and noise follow a seed and can be repeated"
SEEDED_BEFORE = "an earlier part of this run followed a seed that can be repeated"


def guaranteed(card: Card) -> tuple[float | str, float]:
    """The ε and δ to rely on: of the run alone or, for a run of a sweep, of having picked it there."""
    guarantee, selection = card["guarantee"], card["selection"]
    own = guarantee["epsilon_spent"][guarantee["accountant"]]
    if selection["rule"] == "single" or float(selection["epsilon"]) < float(own):
        return own, guarantee["delta"]
    return selection["epsilon"], selection["delta"]


def headline(card: Card) -> str:
    """One line that claims no more than holds."""
    epsilon, delta = guaranteed(card)
    if not card["guarantee"]["private"] or epsilon == "inf":
        return NOT_PRIVATE
    if card["selection"]["rule"] != "single" and not card["selection"]["complete"]:
        return NOT_COUNTED
    return f"{private_at(epsilon, delta)} for {card['guarantee']['unit']}"


def private_at(epsilon: Figure, delta: float) -> str:
    """The guarantee as an adjective, rounded up."""
    return f"(ε = {shown_epsilon(epsilon)}, δ = {shown_delta(delta)})-differentially private"


def statement(spent: Figure, delta: float, not_private: Sequence[str], so_far: str | None) -> str:
    """The guarantee of a run in one sentence; `so_far` is how many steps a run in progress has made."""
    if not_private:
        return f"Not private: {'; '.join(not_private)}."
    what = f"{private_at(spent, delta)} for one training record, added or removed"
    if so_far is not None:
        return f"So far, after {so_far}, the weights are {what}."
    return f"The weights, and everything computed from them, are {what}."


def sweep_statement(spent: Figure, delta: float, *, private: bool, repeated: bool) -> str:
    """The guarantee of a sweep in one sentence."""
    if not private:
        return "Not private: at least one of the runs is not."
    whose = "The run picked from this sweep, and nothing else of it, is" if repeated else "All runs together are"
    return f"{whose} {private_at(spent, delta)} for one training record, added or removed."


def promise(card: Card) -> str:
    """The definition in words, with its factor: a large ε should look large."""
    epsilon, delta = guaranteed(card)
    if epsilon == "inf":
        return "At least one run of the sweep is not private, so neither is what was picked from it."
    factor = f" = {shown_epsilon(math.exp(float(epsilon)))}" if float(epsilon) < 20 else ""
    return (
        f"Any observation of the weights, and of everything computed from them, is at most e^ε{factor} times as likely "
        f"with any one record as without it, and vice versa, up to a probability of δ = {shown_delta(delta)}."
    )


def one_of_a_sweep(explanation: str, own: Figure) -> str:
    """The notice on the card of a run that is one of a sweep."""
    return f"One run of a sweep. {explanation} Trained alone, this run would have ε = {shown_epsilon(own)}."


def released(*, uses_public_data: bool, private: bool) -> list[str]:
    """What ε covers: nothing at all if the run is not private."""
    if not private:
        return ["Nothing: this run is not private, so nothing of it may be treated as protected."]
    covered = [
        "Weights: those of all steps together, and everything computed from them (checkpoints, predictions).",
        "Optimizer state: it is computed from noisy gradients.",
        "Settings and counts: everything on this card. The number of records and the sampling rate are considered "
        "public, and the same with and without the one record.",
    ]
    if uses_public_data:
        covered.insert(2, "Subspace: it comes from public data and from weights already released.")
    return covered


def not_covered(
    *,
    logged: Sequence[str],
    left: Sequence[str],
    log_nonprivate: bool,
    has_public_data: bool,
    carried_steps: int | None,
    builds_on: Sequence[str] = (),
) -> list[str]:
    """What ε does not cover.

    Args:
        logged: Names that training logs.
        left: Those of them that were ever published.
        log_nonprivate: Whether they are published now.
        has_public_data: Whether there was public data to run the checks on.
        carried_steps: Steps known only from a checkpoint whose ledger was lost (maybe 0); None if none was lost.
        builds_on: Other private runs whose weights this one started from.

    """
    lines = [
        _logged_line(logged, left, log_nonprivate),
        "Callbacks, hooks, prints: what user code writes about training records other than through self.log and "
        "attributes (prints, files, global variables) is invisible to this package.",
        "Failures: a record that makes the user's code fail ends the run, which everyone can see.",
        "Validation and test records: their metrics are exact, and choices based on them are not counted.",
        "Hyperparameters: values tuned on the training records in other runs; see the cost of selection.",
        "Preprocessing: anything fitted on the training records before training, such as their mean.",
        "Initial weights: pre-training must have used public data, or be accounted for elsewhere.",
        "Public numbers: the number of records N, the sampling rate, the number of steps, "
        + ("and the shapes and types" if has_public_data else "the shapes and types, and the range of the labels")
        + " of the records.",
        "Several records of one person: a record is one index of the training data. m records, duplicates included, "
        "are protected less than one, with ε up to m times as large and a larger δ.",
        "Side channels: the time and memory of a step depend on how many records were drawn.",
        "Floating point: that clipping bounds a record's contribution, rounding included, is proven. That adding a "
        "record does not change the rounding of the others is measured, not proven: in chunks of one size, as they are "
        "computed, it did not. Floating-point noise is not exactly Gaussian.",
        "Checks: that records do not mix was tested on "
        + ("public records" if has_public_data else "synthetic records")
        + "; code that deliberately treats private records differently is not detected.",
        "Access: who can read the records, the ledger or the memory of the process is outside the mechanism.",
    ]
    if carried_steps is not None:
        lines.insert(
            0,
            f"Lost ledger: {carried_steps} steps are known from a checkpoint only. Any steps after it are not counted.",
        )
    if builds_on:
        lines.insert(
            0,
            f"Earlier runs: some or all of the initial weights come from the private run {', '.join(builds_on)}. Its ε "
            "is not part of this one: whoever trained stated that the two share no training record.",
        )
    return lines


def randomness(generator: str, device: str) -> str:
    """Where sampling and noise come from."""
    if generator == "seeded":
        return "Sampling and noise follow a seed, for tests: anyone who knows it can subtract the noise."
    sampling = (
        "Every process start draws a new 256-bit secret from the operating system, which determines the records of "
        "each step (Philox, keyed by BLAKE2b). It is kept in memory only."
    )
    if generator == "secure":
        return (
            f"{sampling} Noise: ChaCha20 under a key from the operating system, each number a sum of four draws. This "
            "makes known attacks on floating-point noise infeasible; it is not a proof."
        )
    source = "PCG64DXSM from 256 bits" if device == "cpu" else f"the {device} device's generator from a 64-bit seed"
    return f"{sampling} Noise: {source} of the operating system's entropy; fast, not cryptographically secure."


def _logged_line(logged: Sequence[str], left: Sequence[str], log_nonprivate: bool) -> str:
    topic = "Training loss and the like"
    if left:
        sometime = "" if log_nonprivate else " in an earlier part of this run"
        return (
            f"{topic}: log_nonprivate was ON{sometime}. Published without protection: "
            f"{', '.join(f'nonprivate/{name}' for name in left)}."
        )
    if not logged:
        return (
            f"{topic}: training_step logged nothing when it was tried at the start; it would not have been published."
        )
    return f"{topic}: training logs {', '.join(logged)}; log_nonprivate was off, so it was not published."
