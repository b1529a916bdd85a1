"""The privacy card: what a run guarantees and what it does not, beside its checkpoints, for auditors and for people."""

from lightning_gep.privacy.card.rendering import card_css, card_html
from lightning_gep.privacy.card.writing import read_card, update_selection, write_sweep_card

__all__ = ["card_css", "card_html", "read_card", "update_selection", "write_sweep_card"]
