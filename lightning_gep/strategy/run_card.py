"""The card of a run while it is trained: written at the start, after every checkpoint, and at the end."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.card.content import RunFacts, run_card
from lightning_gep.privacy.card.writing import read_card_of, write_card
from lightning_gep.reporting.records import CARD_FILE


def card_directory(checkpoint_callbacks: Iterable[Any], root: Any) -> Path:
    """Beside the checkpoints, if they are on this machine; in the trainer's root directory otherwise."""
    places = (getattr(callback, "dirpath", None) for callback in checkpoint_callbacks)
    local = (place for place in places if place is not None and "://" not in str(place))
    return Path(next(local, root))


class RunCard:
    """Keeps the card of one fit up to date. Belongs to the first process; it must not make a training fail.

    A fit continues what earlier fits of its run left on the card in the same directory: that they were not private,
    what they passed on without protection, and what a sweep counted.
    """

    def __init__(self, directory: Path, account: PrivacyAccount, facts: RunFacts, warn: Callable[[str], Any]) -> None:
        self.directory, self.failed = directory, False
        self.status: str | None = None
        self.account, self.facts = account, _continued(facts, directory, account.run_id)
        self._warn = warn

    @property
    def left(self) -> list[str]:
        """Names of all that the run ever passed on without protection."""
        return self.facts.left

    def note_log(self, name: str) -> None:
        """One more name that training logs, beside those of training_step."""
        self.facts = replace(self.facts, logged=tuple(dict.fromkeys((*self.facts.logged, name))))

    def start(self) -> None:
        """Write the card of a training that begins."""
        self.status = "training"
        self.write()

    def write(self) -> None:
        """Bring the card on disk up to date, or say that it is not; nothing before the training has begun."""
        if self.status is None:
            return
        try:
            write_card(self.directory, run_card(self.account, self.facts, self.status))
        except Exception as error:  # whatever it is: the training is worth more than its card
            self._warn(
                f"The privacy card could not be written ({type(error).__name__}: {error}). If there is a {CARD_FILE} "
                "beside the checkpoints, it is out of date. strategy.privacy.report() has the figures."
            )

    def end(self) -> None:
        """Write the card for good: "stopped" after an exception or interruption, "finished" otherwise."""
        if self.status == "training":
            self.status = "stopped" if self.failed else "finished"
            self.write()


def _continued(facts: RunFacts, directory: Path, run_id: str) -> RunFacts:
    earlier = read_card_of(run_id, directory)
    if earlier is None:
        return facts
    left = earlier.get("logs", {}).get("left_unprotected", ())
    selection = earlier.get("selection")
    return replace(
        facts,
        left_before=tuple(dict.fromkeys((*facts.left_before, *left))),
        not_private_before=tuple(earlier.get("guarantee", {}).get("not_private_because", ())),
        selection_before=selection if selection and selection.get("rule") != "single" else None,
    )
