"""What a sweep costs: before it, at every setting that could be drawn; after it, from the ledgers of its runs."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightning_gep.cli.plan.costs import privacy_plan
from lightning_gep.cli.plan.inputs import Sizes, compose_run, privacy_settings
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy import ledger
from lightning_gep.privacy.accounting import SampledGaussian
from lightning_gep.privacy.card import update_selection, write_sweep_card
from lightning_gep.privacy.card.sweep import sweep_selection
from lightning_gep.privacy.files import CARD_FILE, read_json
from lightning_gep.privacy.selection import RunCost
from lightning_gep.reporting.records import RunRecord, SweepRecord


def planned_costs(runs: list[list[str]], config_name: str) -> list[dict[str, float | bool]]:
    """`sample_rate`, `noise_multiplier`, `steps`, `delta` of the run of each overrides, and whether it is `private`.

    Data and model are built for their sizes; nothing is trained.
    """
    sizes, costs = Sizes(), []
    for overrides in runs:
        config = compose_run(overrides, config_name)
        check_stays_here(config)
        settings, size = privacy_settings(config), sizes.of(config)
        plan = privacy_plan(settings, size)
        costs.append(
            {
                "sample_rate": plan.sample_rate,
                "noise_multiplier": plan.event.noise_multiplier,
                "steps": size.steps,
                "delta": plan.delta,
                "private": settings.private and plan.event.noise_multiplier > 0,
            }
        )
    return costs


def check_stays_here(config: DictConfig) -> None:
    """Raises ConfigurationError if a logger would upload every run, where only the selected one may be published."""
    loggers: Any = OmegaConf.select(config, "logger") or {}
    for name, logger in loggers.items():
        if "wandb" in str(logger.get("_target_", "")).lower() and logger.get("offline") is not True:
            raise ConfigurationError(
                "hydra/sweeper=repeat_and_select keeps all runs but the selected one secret, and W&B would receive "
                f"all of them. Use logger.{name}.offline=true, or logger=csv."
            )


def write_sweep_cards(directory: Path, record: SweepRecord) -> dict[str, Any] | None:
    """Write them, and return what picking the best run costs; None if nothing was released.

    What counts is what the ledgers say, wherever a job put its cards: every run that was ever begun in a job's
    directory, finished, failed, killed or begun anew.
    """
    nothing: list[RunCost | None] = [None]
    counted = [run for job in record.jobs for run in _runs_of(directory / job) or nothing]
    if not any(counted):
        return None
    selection = sweep_selection(counted, repetitions=record.repetitions)
    cards = {}
    for job in record.jobs:
        for path in sorted((directory / job).rglob(CARD_FILE)):
            cards[job] = update_selection(path.parent, selection)
    write_sweep_card(directory, cards, selection)
    return selection


def _runs_of(job: Path) -> list[RunCost]:
    """The cost of every run that released something in a job's directory: one per ledger.

    A run whose job has not finished counts as still running. A run without a card could be anything, so it counts as
    not private; so does a job without a privacy mechanism, which has no ledger.
    """
    record = RunRecord.read(job)
    finished = record is not None and record.status == "finished"
    if record is not None and record.without_privacy:
        without_noise = RunCost(SampledGaussian(1.0, 0.0), record.step, private=False, ended=finished)
        return [without_noise] if record.step else []
    found = (read_json(path) for path in sorted(job.rglob(f"{Path(CARD_FILE).stem}*.json")))
    cards = {card["run_id"]: card for card in found if card.get("kind") == "run"}
    runs = []
    for path in sorted((job / "privacy").glob("*.ledger")):
        content = ledger.read_or_none(path)
        if content is not None and content.count > 0:
            card = cards.get(content.run_id, {"guarantee": {"private": False}, "status": "unknown"})
            ended = finished and card["status"] in ("finished", "stopped")
            runs.append(RunCost.from_ledger(content, private=card["guarantee"]["private"], ended=ended))
    return runs
