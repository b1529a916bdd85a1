"""Which way of computing per-sample gradients a module gets."""

from typing import Any

from torch import nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.arguments import one_of
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.checks import check_loss, fault_of
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.host_states import held_generators_kept
from lightning_gep.gradients.interface import Backend, LossFunction
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.memory import records_at_once
from lightning_gep.gradients.randomness import random_state_kept
from lightning_gep.gradients.state import parameters_kept, untouched

FASTEST_FIRST = ("functional", "hooks", "loop")


def choose_backend(
    module: nn.Module, loss_function: LossFunction, groups: ParameterGroups, public_batch: Any, how: str = "auto"
) -> Backend:
    """The fastest backend that gives the right gradients on a public batch, or the one asked for.

    Guarantee: on the records of `public_batch` the gradients are those of the loss on each record alone, their mean is
    the ordinary gradient of the batch, and replacing a record changes no other's gradient. Raises ConfigurationError if
    the loss does not allow it (see `check_loss`) or if the backend asked for fails. `.reason` says in words why this
    backend. The module, its modes, `.grad` and the random states are left as they were.

    The module has to be in the modes it trains in.
    """
    one_of("gradients", how, ("auto", *FASTEST_FIRST))
    refused: list[str] = []
    with random_state_kept(), held_generators_kept(module), parameters_kept(module):
        reference = check_loss(module, loss_function, groups, public_batch)
        for name in FASTEST_FIRST if how == "auto" else (how,):
            backend = _backend(name)
            fault = fault_of(backend, reference)
            if fault is None:
                chosen = backend(module, loss_function, groups)
                chosen.reason = _reason(name, refused, len(reference.rows), asked_for=how != "auto")
                with untouched(module):
                    chosen.records_at_once = records_at_once(
                        loss_function, public_batch, groups.num_parameters, next(module.parameters()).device
                    )
                return chosen
            refused.append(f"{name} {fault}")
    if how != "auto":
        raise ConfigurationError(
            f"gradients={how!r} cannot be used with this module: {refused[0]}. Use 'auto'.", setting="gradients"
        )
    raise ConfigurationError(f"No way to compute per-sample gradients works on this module: {'; '.join(refused)}.")


def _backend(name: str) -> type[Backend]:
    if name == "hooks":
        # Opacus takes two seconds to import and sets up logging for the whole process: only if it is needed.
        from lightning_gep.gradients.hooks import HookedGradients

        return HookedGradients
    return {"functional": FunctionalGradients, "loop": LoopGradients}[name]


def _reason(name: str, refused: list[str], records: int, *, asked_for: bool) -> str:
    checked = f"checked on {records} public records"
    if asked_for:
        return f"{name}: asked for, {checked}"
    return f"{name}: {'; '.join(refused) if refused else 'fastest'}, {checked}"
