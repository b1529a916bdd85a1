"""The sentences of a card: what was released, what ε does not cover, whom one has to trust, where chance comes from.

Each sentence begins with its topic and a colon. Nothing here is computed from records.
"""

from collections.abc import Sequence

UNIT = "one training record"
NEIGHBOURING_RELATION = "adding or removing one record"
DEFINITION = "(ε, δ)-differential privacy"
TRUST_MODEL = (
    "central: whoever trains sees the records and is trusted with them, with this software and with its random "
    "numbers. The attacker may see the weights after every step, know all other records and everything on this card, "
    "but neither which records a step drew nor the noise."
)
COMPOSITION = (
    "Every step is one Gaussian mechanism on one Poisson subsample, for embedding and residual together; the steps "
    "compose adaptively, and each is counted on disk before its noise is drawn."
)
UTILITY = (
    "not on this card: accuracy is measured on records that ε does not protect. Clipping and noise cost rare groups "
    "more than common ones; compare accuracies by group before relying on an average."
)
NO_NOISE = "no noise is added"
INFINITE_CLIP = "a clipping threshold is infinite, so one record can change a sum without limit"
NO_BOUND = "the accountant proves no finite ε"
SEEDED = "sampling and noise follow a seed and can be repeated"
SEEDED_BEFORE = "an earlier part of this run followed a seed that can be repeated"


def released(*, uses_basis: bool, private: bool) -> list[str]:
    """What ε covers: nothing at all if the run is not private."""
    if not private:
        return ["Nothing: this run is not private, so nothing of it may be treated as protected."]
    covered = [
        "Weights: after every step, seen all together, with everything computed from them (checkpoints, predictions).",
        "Optimizer state: it is computed from noisy gradients.",
        "Settings and counts: what this card says. The number of records and the sampling rate are taken to be public, "
        "and to be the same with and without the one record.",
    ]
    if uses_basis:
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
    """What ε does not cover. `logged` is what training logs, `left` what of it was ever passed on.

    `carried_steps` are those known from a checkpoint whose ledger was lost, which may be 0; None if none was lost.
    `builds_on` are other private runs whose weights it began with.
    """
    lines = [
        _logged_line(logged, left, log_nonprivate),
        "Callbacks, hooks, prints: what code of the user writes about training records by other ways than self.log and "
        "attributes (prints, files, global variables) is not seen by this package.",
        "Failures: a record that the user's code cannot cope with ends the run, which everyone sees.",
        "Validation and test records: their figures are exact, and choices made by them are not counted.",
        "Hyper-parameters: values tuned on the training records in other runs; see the cost of selection.",
        "Preprocessing: whatever was fitted on the training records before training, such as their mean.",
        "First weights: pre-training must have used public data, or be accounted for elsewhere.",
        "Public numbers: the number of records N, the sampling rate, the number of steps, "
        + ("and the shapes and types" if has_public_data else "the shapes and types, and the range of the labels")
        + " of the records.",
        "Several records of one person: a record is one index of the training data. m of them, equal ones included, "
        "are protected less than one, with ε up to m times as large and a larger δ.",
        "Side channels: how long a step takes depends on how many records were drawn; memory use likewise.",
        "Floating point: that clipping bounds a record's share, rounding included, is proven. That one record more "
        "does not move the rounding of the others is measured, not proven: in pieces of one size, as they are "
        "computed, it did not. Noise in floating point is not exactly Gaussian.",
        "Checks: that records do not mix was tried on "
        + ("public records" if has_public_data else "made-up records")
        + "; code that treats private ones differently on purpose escapes it.",
        "Access: who can read the records, the ledger or the memory of the process is outside of the mechanism.",
    ]
    if carried_steps is not None:
        lines.insert(
            0,
            f"Lost ledger: {carried_steps} steps are known from a checkpoint only. Steps made after it, if there were "
            "any, are not counted.",
        )
    if builds_on:
        lines.insert(
            0,
            f"Earlier runs: all or some of the first weights are those of the private run {', '.join(builds_on)}. "
            "Its ε is not part of this one: whoever trained stated that they share no training record.",
        )
    return lines


def randomness(generator: str, device: str) -> str:
    """Where sampling and noise come from."""
    if generator == "seeded":
        return "Sampling and noise follow a seed, for tests: whoever knows it can subtract the noise."
    sampling = (
        "Every start draws a new secret of 256 bits from the operating system; which records a step draws follows from "
        "it (Philox, keyed by BLAKE2b). It is kept in memory only."
    )
    if generator == "secure":
        return (
            f"{sampling} Noise: ChaCha20 under a key from the operating system, each number a sum of four draws. Known "
            "attacks on floating-point noise are infeasible then; that is not a proof."
        )
    source = "PCG64DXSM from 256 bits" if device == "cpu" else f"the {device} device's generator from a 64-bit seed"
    return f"{sampling} Noise: {source} of the operating system's entropy; fast, not cryptographically secure."


def _logged_line(logged: Sequence[str], left: Sequence[str], log_nonprivate: bool) -> str:
    topic = "Training loss and the like"
    if left:
        sometime = "" if log_nonprivate else " in an earlier part of this run"
        return (
            f"{topic}: log_nonprivate was ON{sometime}. Without any protection left: "
            f"{', '.join(f'nonprivate/{name}' for name in left)}."
        )
    if not logged:
        return (
            f"{topic}: training_step logged nothing when it was tried at the start; it would not have been passed on."
        )
    return f"{topic}: training logs {', '.join(logged)}; log_nonprivate was off, so it was not passed on."
