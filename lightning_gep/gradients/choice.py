"""Which way of computing per-sample gradients a module gets."""

import importlib.util
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.arguments import one_of
from lightning_gep.errors import ConfigurationError, missing_extra
from lightning_gep.gradients.comparison import disagreement
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.interface import Backend, LossFunction
from lightning_gep.gradients.isolation import Probe, check_loss, check_no_memory, check_repeatable, in_short, make_probe
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.memory import largest_chunk
from lightning_gep.gradients.randomness import random_state_kept
from lightning_gep.gradients.state import parameters_kept, untouched
from lightning_gep.gradients.vectorising import OTHER_STAND_INS, Vectorising

AUTOMATIC, ASKED_FOR = ("functional", "loop"), ("auto", "functional", "hooks", "loop")


def choose_backend(
    module: nn.Module, loss_function: LossFunction, groups: ParameterGroups, public_batch: Any, how: str = "auto"
) -> Backend:
    """The fastest backend that gives the right gradients on a public batch, or the one asked for.

    Guarantee: on the records of `public_batch` the gradients are those of the loss on each record alone, and their mean
    is the ordinary gradient of the batch. `.reason` says in words why this backend. The module, its modes, `.grad` and
    the random states are left as they were.

    The module has to be in the modes it trains in.

    Raises:
        ConfigurationError: If the loss has no right per-sample gradients (see `check_loss`), or if the backend asked
            for fails.

    """
    one_of("gradients", how, ASKED_FOR)
    refused: list[str] = []
    with random_state_kept(module), parameters_kept(module):
        probe = make_probe(module, loss_function, groups, public_batch)
        check_loss(probe)
        right = probe.rows()
        for name in AUTOMATIC if how == "auto" else (how,):
            fault = _fault_of(name, probe, right)
            if fault is None:
                chosen = _backend(name)(module, loss_function, groups)
                chosen.reason = _reason(name, refused, len(right), asked_for=how != "auto")
                with untouched(module):
                    chosen.largest_chunk = largest_chunk(module, loss_function, public_batch, groups.num_parameters)
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
    with random_state_kept(module), parameters_kept(module):
        probe = make_probe(module, backend.loss_function, backend.groups, public_batch)
        check_repeatable(probe)
        fault, instead = None, "auto"
        if backend.name == "hooks":
            fault = _hooks().fault_in_isolation(probe)
        elif backend.name == "functional":
            # Not for privacy: a stand-in is the same for all records. But it would train another model.
            fault, instead = _decides_by_values(probe), "loop"
        if fault is not None:
            raise ConfigurationError(
                f"gradients={backend.name!r} cannot be used any more: {backend.name} {fault}. Use {instead!r}.",
                setting="gradients",
            )
        check_no_memory(probe)


def _backend(name: str) -> type[Backend]:
    if name == "hooks":
        return _hooks().HookedGradients
    return FunctionalGradients if name == "functional" else LoopGradients


def _hooks() -> Any:
    """The module about hooks. Opacus takes two seconds to import and sets up logging for the whole process."""
    if importlib.util.find_spec("opacus") is None:
        raise missing_extra("hooks", "gradients='hooks'")
    return importlib.import_module("lightning_gep.gradients.hooks")


def _fault_of(name: str, probe: Probe, right: Tensor) -> str | None:
    """What is wrong with a backend on this module, in words that follow its name; None if nothing was found."""
    if name == "loop":
        return None  # it is what others are compared with
    find = partial(_fault_of_functional, right=right) if name == "functional" else _hooks().fault_of_hooks
    try:
        return find(probe)
    except Exception as error:  # the user's code runs in a way it was not written for: anything may be raised
        return f"failed with {in_short(error)}"


def _fault_of_functional(probe: Probe, right: Tensor) -> str | None:
    """With `randomness="same"` and a seed every record draws what it draws alone, so random losses can be compared."""
    usual, as_in_training = Vectorising(), Vectorising()
    fault = disagreement(_vectorised(probe, usual), right, probe.groups, probe.tolerance)
    if fault is not None:
        return fault
    _vectorised(probe, as_in_training, "different")
    if as_in_training.stood_in > usual.stood_in:
        return "cannot be used: training_step asks for the value of a random number (.item() or float())"
    return _decides_by_values(probe)


def _decides_by_values(probe: Probe) -> str | None:
    """Whether training_step does more than log what `.item()` and `float()` return, for which there are stand-ins."""
    usual = Vectorising()
    expected = _vectorised(probe, usual)
    for stand_in in OTHER_STAND_INS if usual.stood_in else ():
        try:
            found = _vectorised(probe, Vectorising(stand_in))
        except Exception:  # code that cannot take this value, such as log(0), tells nothing
            continue
        if disagreement(found, expected, probe.groups, probe.tolerance):
            return "cannot be used: training_step decides something by the value of a tensor (.item() or float())"
    return None


def _vectorised(probe: Probe, vectorising: Vectorising, randomness: str = "same") -> Tensor:
    with untouched(probe.module):
        return FunctionalGradients(
            probe.module, probe.loss(), probe.groups, randomness=randomness, vectorising=vectorising
        )(probe.records)


def _reason(name: str, refused: list[str], records: int, *, asked_for: bool) -> str:
    checked = f"checked on {records} public records"
    if asked_for:
        return f"{name}: asked for, {checked}"
    return f"{name}: {'; '.join(refused) if refused else 'fastest'}, {checked}"
