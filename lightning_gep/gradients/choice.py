"""Which way of computing per-sample gradients a module gets."""

import importlib.util
from typing import Any

import torch
from torch import nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.arguments import one_of
from lightning_gep.errors import ConfigurationError, missing_extra
from lightning_gep.gradients.batches import batch_size
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.ghost import GhostGradients
from lightning_gep.gradients.interface import Backend, LossFunction
from lightning_gep.gradients.isolation import check_loss, check_no_memory, check_repeatable, in_short, make_trial
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.memory import largest_chunk
from lightning_gep.gradients.randomness import random_state_kept
from lightning_gep.gradients.state import untouched

WEIGHTED = "a record's own loss counts, whatever weight tokens or classes give it in a batch (see docs/gradients.md)"
AUTOMATIC, ASKED_FOR = ("functional", "loop"), ("auto", "functional", "ghost", "hooks", "loop")
ROWS_UP_TO = 2**20
"""Parameters above which gradients are not formed if their norms and sums are enough. Below, rows are as fast."""


def choose_backend(
    module: nn.Module,
    loss_function: LossFunction,
    groups: ParameterGroups,
    public_batch: Any,
    how: str = "auto",
    *,
    rows_needed: bool = True,
    turned: bool = False,
) -> Backend:
    """The fastest backend that gives the right gradients on a public batch, or the one asked for.

    `turned` says that gradients are needed in the coordinates of a public spectrum: the inputs and output gradients of
    layers are turned faster than the gradients themselves, so `ghost` comes first for models of any size.

    Guarantee: on the records of `public_batch` the gradients are those of the loss on each record alone, and their mean
    is the ordinary gradient of the batch. The module, its modes, `.grad` and the random states are left as they were.
    The module has to be in the modes it trains in. `.reason` says why this backend.

    Raises:
        ConfigurationError: If the loss has no right per-sample gradients (see `check_loss`), or if the backend asked
            for fails.

    """
    one_of("gradients", how, ASKED_FOR)
    refused: list[str] = []
    with random_state_kept(module):
        trial = make_trial(module, loss_function, groups, public_batch)
        weighted = check_loss(trial)
        large = groups.num_parameters > ROWS_UP_TO
        ghost = ("ghost",) if not rows_needed and (large or turned) else ()
        for name in (*ghost, *AUTOMATIC) if how == "auto" else (how,):
            kind = _backend(name)
            try:
                fault = kind.fault(trial)
            except Exception as error:  # the user's code runs in a way it was not written for: anything may be raised
                fault = f"failed with {in_short(error)}"
            if fault is None:
                rows_of = {"forms_rows": True} if name == "ghost" and how == "auto" and not large else {}
                chosen = kind(module, loss_function, groups, **rows_of)
                why = "asked for" if how != "auto" else "; ".join(refused) or "fastest"
                chosen.reason = (
                    f"{name}: {why}, checked on {batch_size(trial.records)} records{f'; {WEIGHTED}' * weighted}"
                )
                with untouched(module):
                    chosen.largest_chunk = largest_chunk(module, loss_function, public_batch, chosen.held_per_record)
                return chosen
            refused.append(f"{name} {fault}")
    raise ConfigurationError(
        f"gradients={how!r} cannot be used with this module: {refused[0]}. Use 'auto'.", setting="gradients"
    )


def check_still_apart(backend: Backend, public_batch: Any) -> None:
    """Raises ConfigurationError if records have begun to reach each other since the backend was chosen.

    That is by what training_step remembers or draws from a generator that cannot be seeded, and for `hooks` inside a
    chunk. Weights that are not finite have no gradients that could tell. The module and the random states are left as
    they were.
    """
    module = backend.module
    if not all(bool(torch.isfinite(p).all()) for p in module.parameters()):
        return
    with random_state_kept(module):
        trial = make_trial(module, backend.loss_function, backend.groups, public_batch)
        check_repeatable(trial)
        fault = backend.later_fault(trial)
        if fault is not None:
            raise ConfigurationError(
                f"gradients={backend.name!r} cannot be used any more: {backend.name} {fault}. Use 'loop'.",
                setting="gradients",
            )
        check_no_memory(trial)


def _backend(name: str) -> type[Backend]:
    if name != "hooks":
        kinds: dict[str, type[Backend]] = {"ghost": GhostGradients, "loop": LoopGradients}
        return kinds.get(name, FunctionalGradients)
    # Imported on request only: Opacus takes two seconds and sets up logging for the whole process.
    if importlib.util.find_spec("opacus") is None:
        raise missing_extra("hooks", "gradients='hooks'")
    hooked: type[Backend] = importlib.import_module("lightning_gep.gradients.hooks").HookedGradients
    return hooked
