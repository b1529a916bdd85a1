"""The card of a run while it is trained: written at the start, after every checkpoint, and at the end."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.thresholds import Thresholds
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.card.content import RunFacts, release_section, run_card
from lightning_gep.privacy.card.writing import read_card_of, write_card
from lightning_gep.privacy.files import CARD_FILE
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.strategy.public_data import PublicRecords
from lightning_gep.strategy.settings import CostSettings, PrivacySettings


def card_directory(checkpoint_callbacks: Iterable[Any], root: Any) -> Path:
    """Beside the checkpoints, if they are on this machine; beside the ledger otherwise."""
    places = (getattr(callback, "dirpath", None) for callback in checkpoint_callbacks)
    local = (place for place in places if place is not None and "://" not in str(place))
    return Path(next(local, Path(root) / "privacy"))


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


def mechanism_section(
    settings: PrivacySettings, cost: CostSettings, chosen: Thresholds, groups: ParameterGroups, plan: PrivacyPlan
) -> dict[str, Any]:
    """The mechanism with all its parameters, and which of them were chosen on public data."""
    uses_basis, has_anchors = settings.uses_basis, settings.uses_public_data
    tracked = has_anchors and (cost.subspace == "tracked" or not uses_basis)
    k = chosen.k if uses_basis else None
    quotas = groups.quotas(k) if k is not None else [None] * len(groups.names)
    return {
        "name": settings.mechanism,
        **release_section(plan),
        "k": k,
        "num_parameters": groups.num_parameters,
        "split": _split(settings),
        "groups": [
            {"name": name, "parameters": size, "k": quota}
            for name, size, quota in zip(groups.names, groups.sizes, quotas, strict=True)
        ],
        "subspace": cost.subspace if uses_basis else None,
        "num_anchors": cost.anchors if has_anchors else None,
        "refresh_every": cost.interval if has_anchors else None,
        "decay": cost.decay if tracked else None,
        "power_iterations": cost.power_iterations if uses_basis and cost.subspace == "power" else None,
        "precondition": cost.precondition if settings.mechanism == "spectral" else None,
        "residual_memory": cost.residual_memory if settings.mechanism == "gep" else None,
        "chosen_on_public_data": list(settings.chosen_on_public_data),
    }


def public_data_section(records: PublicRecords | None, *, uses_public_data: bool) -> dict[str, Any] | None:
    """Which public records were used, and for what."""
    if records is None:
        return None
    used_for = "subspace, thresholds, checks" if uses_public_data else "checks of the module"
    return {**asdict(records), "used_for": used_for}


def _split(settings: PrivacySettings) -> Any:
    if settings.mechanism != "gep" or settings.clipping == "joint":
        return None
    return settings.split if isinstance(settings.split, str) else list(settings.split)
