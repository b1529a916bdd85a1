"""Cards on disk: written whole, beside the checkpoints, and never over the card of another run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.card.rendering import Card, card_page, headline
from lightning_gep.privacy.card.software import software
from lightning_gep.privacy.card.sweep import sweep_card
from lightning_gep.privacy.files import CARD_FILE, CARD_PAGE, read_json, write_json, write_text


def read_card(directory: Path) -> dict[str, Any] | None:
    """The card in a directory, or None if there is none that can be read."""
    return _read(directory / CARD_FILE)


def read_card_of(run_id: str, directory: Path) -> dict[str, Any] | None:
    """The card of that run in a directory, even if another run has set it aside."""
    found = (_read(path) or {} for path in (directory / CARD_FILE, *_set_aside(directory)))
    return next((card for card in found if card.get("run_id") == run_id), None)


def write_card(directory: Path, card: Card) -> None:
    """Replace the run's card, JSON and page. The card of another run is set aside under that run's name."""
    there = directory / CARD_FILE
    owner = (_read(there) or {}).get("run_id", "unreadable")
    if there.exists() and owner != card["run_id"]:
        for path in (there, directory / CARD_PAGE):
            if path.exists():
                path.replace(path.with_stem(f"{path.stem}-{owner}"))
    _write(directory, card)
    for path in _set_aside(directory):
        # Set aside when another run started here; it is older than the card just written.
        if (_read(path) or {}).get("run_id") == card["run_id"]:
            path.unlink()
            path.with_suffix(".html").unlink(missing_ok=True)


def update_selection(directory: Path, selection: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the selection block of the card in a directory, JSON and page; returns the card."""
    card = read_card(directory)
    if card is None:
        raise ConfigurationError(
            f"There is no privacy card in the directory {directory.name!r}. Give the one with the run's checkpoints."
        )
    return _write(directory, {**card, "selection": dict(selection)})


def write_sweep_card(directory: Path, cards: Mapping[str, Card], selection: Mapping[str, Any]) -> dict[str, Any]:
    """Write the card of a whole sweep, from the cards of its runs by job name; returns it."""
    return _write(directory, sweep_card(directory.name, cards, selection, software()))


def _write(directory: Path, card: Card) -> dict[str, Any]:
    # The page first: whoever reads the JSON then finds a page that is at least as new.
    write_text(directory / CARD_PAGE, card_page(card))
    written = {**card, "headline": headline(card)}
    write_json(directory / CARD_FILE, written)
    return written


def _set_aside(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{Path(CARD_FILE).stem}-*.json"))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        card = read_json(path)
    except (OSError, ValueError):
        return None
    return card if isinstance(card, dict) else None
