"""The cost of a sweep as a whole, on a card of its own and on the card of every run."""

from pathlib import Path
from typing import Any

from lightning_gep.privacy import ledger
from lightning_gep.privacy.card import read_card, update_selection, write_sweep_card
from lightning_gep.privacy.files import CARD_FILE, read_json
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.selection import sweep_selection
from lightning_gep.reporting.records import RunRecord, SweepRecord

Card = dict[str, Any]


def write_sweep_cards(directory: Path, record: SweepRecord) -> dict[str, Any] | None:
    """Write them, and return what picking the best run costs; None if nothing was released.

    What counts is what the ledgers say, wherever a job put its cards: every run that was ever begun in a job's
    directory, finished, failed, killed or begun anew.
    """
    runs = {job: runs_of(directory / job) for job in record.jobs}
    nothing: list[Card | None] = [None]
    counted = [run for job in record.jobs for run in runs[job] or nothing]
    if not any(counted):
        return None
    selection = sweep_selection(counted, rule=record.selection, repetitions=record.repetitions)
    cards = {}
    for job in record.jobs:
        for path in sorted((directory / job).rglob(CARD_FILE)):
            update_selection(path.parent, selection)
            cards[job] = read_card(path.parent)
    write_sweep_card(directory, {job: card for job, card in cards.items() if card is not None}, selection)
    return selection


def runs_of(job: Path) -> list[Card]:
    """What was released in a job's directory: a card for each of its ledgers that has a release, as far as it matters.

    A run whose job is not finished counts as one that goes on. One without a card may have been anything, so it counts
    as not private. So does a job without any privacy mechanism, which has no ledger.
    """
    found = (read_json(path) for path in sorted(job.rglob(f"{Path(CARD_FILE).stem}*.json")))
    cards = {card["run_id"]: card for card in found if card.get("kind") == "run"}
    record = RunRecord.read(job)
    finished = record is not None and record.status == "finished"
    if record is not None and record.without_privacy:
        return [_unprotected(record)] if record.step else []
    runs = []
    for path in sorted((job / "privacy").glob("*.ledger")):
        content = ledger.read_or_none(path)
        if content is not None and content.count > 0:
            runs.append(_counted(content, cards.get(content.run_id), finished=finished))
    return runs


def _counted(content: ledger.LedgerContent, card: Card | None, *, finished: bool) -> Card:
    plan = PrivacyPlan.from_state(content.parameters["plan"])
    return {
        "status": card["status"] if card is not None and finished else "training",
        "guarantee": {
            "delta": plan.delta,
            "accountant": plan.accountant,
            "private": card is not None and card["guarantee"]["private"],
        },
        "sampling": {"sample_rate": plan.event.sample_rate},
        "mechanism": {"noise_multiplier": plan.event.noise_multiplier},
        "steps": {"counted": content.count, "planned": plan.planned_steps},
    }


def _unprotected(record: RunRecord) -> Card:
    return {
        "status": "finished" if record.status == "finished" else "training",
        "guarantee": {"delta": 1.0, "accountant": "pld", "private": False},
        "sampling": {"sample_rate": 1.0},
        "mechanism": {"noise_multiplier": 0.0},
        "steps": {"counted": record.step, "planned": record.planned_steps},
    }
