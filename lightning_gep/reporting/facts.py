"""What a report says in words: how far the runs are, which is best, what choosing it cost, what is not covered."""

import math
from collections import Counter
from collections.abc import Iterable

from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.reporting.load import Collection, Run, inner, number
from lightning_gep.reporting.text import counted, listed, percent, sentence

STATUSES = ("finished", "running", "waiting", "failed", "interrupted", "unreadable")

NOT_COVERED = [
    "validation and test records, and choices made by looking at them",
    "values computed from training records without noise: everything named nonprivate/…",
    "hyper-parameters tuned on the training records: every run costs its own ε",
    "preprocessing fitted on the training records",
    "runs with a seeded generator or without noise",
]
"""What no ε of this package covers; a privacy card has its own list."""


def progress(runs: list[Run]) -> str:
    """`12 of 18 finished, 1 running, 5 waiting`."""
    counts = Counter(run.status for run in runs)
    if len(runs) == 1:
        return runs[0].status
    others = [status for status in dict.fromkeys([*STATUSES, *counts]) if status != "finished" and counts[status]]
    first = f"{counts['finished']} of {len(runs)} finished"
    return ", ".join([first, *(f"{counts[status]} {status}" for status in others)])


def best_run(runs: Iterable[Run]) -> Run | None:
    """The finished private run with the highest validation accuracy. Test accuracy plays no part in it."""
    scored = [
        (accuracy, run)
        for run in runs
        if run.finished and not run.not_private and (accuracy := run.newest("val/accuracy")) is not None
    ]
    return max(scored, key=lambda pair: pair[0])[1] if len(scored) > 1 else None


def best_sentences(collection: Collection, best: Run) -> list[str]:
    """Which run is best, and that finding it was not free."""
    return [
        f"Best by validation accuracy: {best.job} ({percent(best.newest('val/accuracy'))} on validation records, "
        f"{percent(best.newest('test/accuracy'))} on test records, ε = {rounded_up(best.epsilon)}). "
        "Test accuracy played no part in the choice.",
        "Choosing it cost privacy: the choice looked at every run, so its own ε alone does not cover it. "
        + selection_sentence(collection),
    ]


def selection_sentence(collection: Collection) -> str:
    """What all runs cost together: as the sweep's card says, or else by basic composition."""
    cards = [sweep.card for sweep in collection.sweeps if sweep.card is not None]
    if len(collection.sweeps) == 1 and cards:
        selection = inner(cards[0], "selection")
        epsilon, delta = number(inner(selection, "epsilon")), number(inner(selection, "delta"))
        if epsilon is not None and delta is not None:
            explanation = sentence(str(inner(selection, "explanation") or ""))
            figure = "" if "ε" in explanation else f"ε = {rounded_up(epsilon)}, δ = {delta:g} for it."
            secret = inner(selection, "rule") == "repeat_and_select"
            share = sentence(str(inner(cards[0], "share") or "")) if secret else ""
            return " ".join(filter(None, ["The sweep's privacy card:", figure, explanation, share]))
    return composition_sentence(collection.runs)


def composition_sentence(runs: list[Run]) -> str:
    """The sum of all ε and of all δ so far: always valid, and larger than what a sweep's card counts."""
    begun = [run for run in runs if run.status != "waiting"]
    unknown = [
        run for run in begun if (run.epsilon is None or run.delta is None) and (run.step or run.status != "failed")
    ]
    if unknown:
        return f"What all runs cost together is not known: {counted(len(unknown), 'run')} did not say its ε."
    if any(run.not_private for run in begun):
        return "Some runs are not private, so together the runs have no finite ε."
    counting = [run for run in begun if run.epsilon is not None and run.delta is not None]
    epsilon = math.fsum(run.epsilon or 0.0 for run in counting)
    delta = math.fsum(run.delta or 0.0 for run in counting)
    return (
        f"Until a sweep's privacy card counts more closely, basic composition of the {counted(len(counting), 'run')} "
        f"so far gives at most ε = {rounded_up(epsilon)}, δ = {delta:.3g}, if all train on the same records."
    )


def not_private_sentence(runs: list[Run]) -> str:
    """Names what among the runs has no guarantee; empty if all have one."""
    without_noise = [run for run in runs if run.noise_multiplier == 0]
    seeded = [run for run in runs if run.not_private and run.noise_multiplier != 0]
    parts = []
    if without_noise:
        parts.append(f"{counted(len(without_noise), 'run')} without noise (ε = ∞)")
    if seeded:
        parts.append(f"{counted(len(seeded), 'run')} whose sampling and noise can be repeated")
    return f"Not private: {listed(parts)}." if parts else ""


def not_covered(collection: Collection) -> list[str]:
    """What the cards say is not covered, each once; the package's own list where there is no card."""
    cards = [sweep.card for sweep in collection.sweeps] + [run.card for run in collection.runs]
    lists = [inner(card, "not_covered") for card in cards]
    said = dict.fromkeys(str(text) for found in lists if isinstance(found, list) for text in found)
    return list(said) or NOT_COVERED
