"""What a sweep costs: before it, at every setting that could be drawn; after it, from the ledgers of its runs."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightning_gep.cli.plan.inputs import Sizes, privacy_settings
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy import ledger
from lightning_gep.privacy.card import read_card, update_selection, write_sweep_card
from lightning_gep.privacy.files import CARD_FILE, read_json
from lightning_gep.privacy.selection import RunCost, sweep_selection
from lightning_gep.reporting.records import NO_PRIVACY, RunRecord, SweepRecord


def planned_costs(configs: list[DictConfig]) -> list[dict[str, float | bool]]:
    """`sample_rate`, `noise_multiplier`, `steps`, `delta` of each run, and whether it is `private`.

    Data and model are built for their sizes; nothing is trained.
    """
    sizes = Sizes()
    return [_planned_cost(config, sizes) for config in configs]


def _planned_cost(config: DictConfig, sizes: Sizes) -> dict[str, float | bool]:
    if config.mechanism.mechanism == NO_PRIVACY:
        raise ConfigurationError(
            "mechanism=none has no privacy, so a run picked among such runs has none either. Leave it out, or train a "
            "grid without hydra/sweeper=repeat_and_select."
        )
    settings, size = privacy_settings(config), sizes.of(config)
    plan = settings.plan(
        num_records=size.num_records,
        batch_size=size.expected_batch_size,
        steps=size.steps,
        num_parameters=size.num_parameters,
    )
    return {
        "sample_rate": plan.sample_rate,
        "noise_multiplier": plan.event.noise_multiplier,
        "steps": size.steps,
        "delta": plan.delta,
        "private": settings.private and plan.event.noise_multiplier > 0,
    }


def write_sweep_cards(directory: Path, record: SweepRecord) -> dict[str, Any] | None:
    """Write them, and return what picking the best run costs; None if nothing was released.

    What counts is what the ledgers say, wherever a job put its cards: every run that was ever begun in a job's
    directory, finished, failed, killed or begun anew.
    """
    runs = {job: runs_of(directory / job) for job in record.jobs}
    nothing: list[RunCost | None] = [None]
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


def runs_of(job: Path) -> list[RunCost]:
    """The cost of every run that released something in a job's directory: one per ledger.

    A run whose job has not finished counts as still running. A run without a card could be anything, so it counts as
    not private; so does a job without a privacy mechanism, which has no ledger.
    """
    record = RunRecord.read(job)
    finished = record is not None and record.status == "finished"
    if record is not None and record.without_privacy:
        return [RunCost.without_privacy(record.step, ended=finished)] if record.step else []
    found = (read_json(path) for path in sorted(job.rglob(f"{Path(CARD_FILE).stem}*.json")))
    cards = {card["run_id"]: RunCost.from_card(card) for card in found if card.get("kind") == "run"}
    contents = (ledger.read_or_none(path) for path in sorted((job / "privacy").glob("*.ledger")))
    runs = []
    for content in contents:
        if content is not None and content.count > 0:
            card = cards.get(content.run_id)
            private, ended = (False, False) if card is None else (card.private, card.ended and finished)
            runs.append(RunCost.from_ledger(content, private=private, ended=ended))
    return runs
