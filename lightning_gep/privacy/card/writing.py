"""Cards on disk: written whole, beside the checkpoints, and never over the card of another run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.card.page import card_page
from lightning_gep.privacy.card.sentences import headline
from lightning_gep.privacy.card.software import software
from lightning_gep.privacy.card.sweep import sweep_card
from lightning_gep.privacy.files import CARD_FILE, CARD_PAGE, read_json, write_json, write_text

Card = Mapping[str, Any]


def read_card(directory: Path) -> dict[str, Any] | None:
    """The card in a directory, or None if there is none that can be read."""
    return _read(directory / CARD_FILE)


def read_card_of(run_id: str, directory: Path) -> dict[str, Any] | None:
    """The card of that run in a directory, also where another run has put it aside."""
    found = (_read(directory / name) for name in (CARD_FILE, _kept_name(CARD_FILE, run_id)))
    return next((card for card in found if card is not None and card.get("run_id") == run_id), None)


def write_card(directory: Path, card: Card) -> None:
    """Replace the run's card, JSON and page. A card of another run in the same place is kept under its run's name."""
    _keep_other_runs_card(directory, card)
    _write(directory, card)
    kept = directory / _kept_name(CARD_FILE, str(card["run_id"]))
    if (old := _read(kept)) is not None and old.get("run_id") == card["run_id"]:
        # It was put aside when another run began here; what it says is older than the card just written.
        kept.unlink()
        kept.with_suffix(Path(CARD_PAGE).suffix).unlink(missing_ok=True)


def update_selection(directory: Path, selection: Mapping[str, Any]) -> None:
    """Put a new selection block on the card in a directory, JSON and page."""
    card = read_card(directory)
    if card is None:
        raise ConfigurationError(
            f"There is no privacy card in the directory {directory.name!r}. Give the one with the run's checkpoints."
        )
    _write(directory, {**card, "selection": dict(selection)})


def write_sweep_card(directory: Path, cards: Mapping[str, Card], selection: Mapping[str, Any]) -> dict[str, Any]:
    """Write the card of a whole sweep, from the cards of its runs by the names of their jobs; returns it."""
    return _write(directory, sweep_card(directory.name, cards, selection, software()))


def _write(directory: Path, card: Card) -> dict[str, Any]:
    # The page first: a reader of the JSON then finds a page that is at least as new.
    write_text(directory / CARD_PAGE, card_page(card))
    written = {**card, "headline": headline(card)}
    write_json(directory / CARD_FILE, written)
    return written


def _keep_other_runs_card(directory: Path, card: Card) -> None:
    there = directory / CARD_FILE
    if not there.exists():
        return
    found = _read(there)
    owner = "unreadable" if found is None else str(found.get("run_id") or found.get("kind") or "unknown")
    if owner == card["run_id"]:
        return
    kept = directory / _kept_name(CARD_FILE, owner)
    before = _read(kept)
    if kept.exists() and (before is None or before.get("run_id") != owner):
        kept = directory / f"{Path(CARD_FILE).stem}-{owner}-{there.stat().st_mtime_ns}{kept.suffix}"
    there.replace(kept)
    page = directory / CARD_PAGE
    if page.exists():
        page.replace(kept.with_suffix(page.suffix))


def _kept_name(name: str, owner: str) -> str:
    return f"{Path(name).stem}-{owner[:8]}{Path(name).suffix}"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        card = read_json(path)
    except (OSError, ValueError):
        return None
    return card if isinstance(card, dict) else None
