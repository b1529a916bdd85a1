"""The cost of a sweep as a whole, on a card of its own and on the card of every run."""

from pathlib import Path
from typing import Any

from lightning_gep.card import read_card, read_kept_cards, update_selection, write_sweep_card
from lightning_gep.runs import SweepRecord
from lightning_gep.selection import sweep_selection

CARDS = "checkpoints"
"""The folder of a job that its card is in."""


def write_sweep_cards(directory: Path, record: SweepRecord) -> dict[str, Any] | None:
    """Write them, and return what picking the best run costs; None if no job got as far as a card.

    Every job that has a card counts, finished or not: what was released by a job that failed later is released. So does
    a run that was begun anew in the same place.
    """
    found = {job: read_card(directory / job / CARDS) for job in record.jobs}
    cards = {job: card for job, card in found.items() if card is not None}
    if not cards:
        return None
    earlier = [card for job in record.jobs for card in read_kept_cards(directory / job / CARDS)]
    selection = sweep_selection([*found.values(), *earlier], rule=record.selection, repetitions=record.repetitions)
    for job in cards:
        update_selection(directory / job / CARDS, selection)
    write_sweep_card(directory, cards, selection)
    return selection
