"""The privacy card: what a run guarantees and what it does not, beside its checkpoints, for auditors and for people."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_gep.card.writing import read_card, read_kept_cards, update_selection, write_sweep_card

__all__ = ["read_card", "read_kept_cards", "update_selection", "write_sweep_card"]


def __getattr__(name: str) -> Any:
    # On first use: selection rounds its figures with a module of this package, and cards need the selection.
    if name not in __all__:
        raise AttributeError(f"module 'lightning_gep.card' has no attribute {name!r}")
    return getattr(import_module("lightning_gep.card.writing"), name)
