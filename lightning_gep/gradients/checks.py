"""Checks on public data: that per-sample gradients make sense for a loss, and that a backend is right.

All of them before training, and once an epoch that records have not begun to mix.

Backends are compared with the gradient of the loss on each record alone. That is what training needs only if the loss
of a batch is the mean over its records and no record touches another, so this is checked first.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.comparison import close, disagreement, magnitudes, relative_errors, worst
from lightning_gep.gradients.extremes import extreme_batches
from lightning_gep.gradients.host_states import HostStates, held_generators, held_generators_kept
from lightning_gep.gradients.interface import Backend, LossFunction
from lightning_gep.gradients.precision import HALF_TOLERANCE
from lightning_gep.gradients.randomness import (
    LEVELS,
    SEEDS,
    SEEDS_AT_A_LEVEL,
    DrawSizes,
    random_state_kept,
    seed_everywhere,
)
from lightning_gep.gradients.reference import (
    REENTRANT,
    SEED,
    Probe,
    Reference,
    finite_records,
    in_double,
    in_short,
    make_reference,
)
from lightning_gep.gradients.state import (
    attributes,
    check_unchanged,
    named_tensors,
    parameters_kept,
    saved_beside_tensors,
    untouched,
)

Outcome = TypeVar("Outcome")

RECORDS = 6
"""Public records that the checks use: enough to see mixing, few enough to loop over, in double precision too."""
EXTREMES = (
    "training_step treats a whole batch differently where one record has an extreme value (as by replacing or clamping "
    "a loss that is not finite or too large, or by a mean over what is not masked)"
)
CALLS = 9
"""A coin that is thrown at every call, from a generator that nothing seeds, falls on one side in one case of 256."""
GROSS_ERROR = 0.5
"""A difference that rounding does not explain in any precision: kinks and deep networks magnify it."""


def check_loss(module: nn.Module, loss_function: LossFunction, groups: ParameterGroups, public_batch: Any) -> Reference:
    """The reference to hold backends against.

    Raises ConfigurationError unless, on these public records and as far as rounding lets one see: no record touches
    the gradient of another, the loss changes no parameter or buffer and does not depend on earlier calls, and it is the
    mean over the records. What fails in the precision of training is judged again in double precision, if the loss runs
    in it, and half precision is not relied on at all. The module is left as it was, except for parameters that the loss
    changes; random states are not.
    """
    return _judged(_checked, Probe(module, loss_function, groups), public_batch)


def check_still_apart(backend: Backend, public_batch: Any, *, by_chance: bool = True) -> None:
    """Raises ConfigurationError if records have begun to touch each other since `check_loss` found that they do not.

    Alone, one after the other or under vmap, they can by what training_step remembers; together, as with hooks, in any
    way, and `by_chance` with some random numbers. Weights that are not finite have no gradients that could. The module
    and the random states are left as they were.
    """
    if not _has_finite_weights(backend.module):
        return
    checks: list[Callable[[Probe, Any], None]] = [check_repeatable, check_no_memory]
    if backend.name == "hooks":
        mixing = [check_records_apart, *[check_records_apart_by_chance] * by_chance]
        checks = [check_repeatable, *mixing, check_no_memory, partial(check_extremes_apart, type(backend))]
    probe = Probe(backend.module, backend.loss_function, backend.groups)
    with random_state_kept(), parameters_kept(backend.module):
        for check in checks:
            _judged(check, probe, public_batch)


def _has_finite_weights(module: nn.Module) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in module.parameters())


def _judged(check: Callable[[Probe, Any], Outcome], probe: Probe, public_batch: Any) -> Outcome:
    """The check in the precision of training; if it fails there, or that is half precision, in double if it can be."""
    batch = _some_records(probe, public_batch)
    if probe.tolerance(batch) >= HALF_TOLERANCE:
        return check(in_double(probe, batch) or probe, batch)
    try:
        return check(probe, batch)
    except ConfigurationError:
        finer = in_double(probe, batch)
        if finer is None:
            raise
    return check(finer, batch)


def fault_of(backend: type[Backend], reference: Reference) -> str | None:
    """What is wrong with a backend on this module, in words that follow its name; None if nothing was found.

    The gradient of every record is compared with the reference, and again after a record was replaced and another left
    out; if they differ, once more in double precision, which decides. Then the backend runs as it will in training.
    """
    faults = [_wrong_rows, _wrong_at_work]
    if backend.name == "hooks":
        faults = [_cannot_be_together, *faults, _wrong_beside_extremes]
    try:
        return next((fault for find in faults if (fault := find(backend, reference))), None)
    except Exception as error:  # the user's code runs in a way it was not written for: anything may be raised
        return f"failed with {in_short(error)}"


def _cannot_be_together(backend: type[Backend], reference: Reference) -> str | None:
    if reference.probe.in_evaluation_mode:
        return "cannot be checked, since the loss is random in training mode, and terms outside layers would be lost"
    if mixes_sometimes(reference.probe, reference.batch):
        return "would mix records, as training_step does with some random numbers"
    if draws_for_several(reference.probe, reference.batch):
        return "would share random numbers among records, as training_step draws some for a batch as a whole"
    return None


def draws_for_several(probe: Probe, batch: Any) -> bool:
    """Whether training_step draws random numbers that are not, or may not be, for a single record each.

    Those that torch draws are, if there are as many for every record in a batch of another size.
    """
    n = batch_size(batch)
    first, second = (_draws_for_a_record(probe, take(batch, slice(0, size)), size) for size in (n, n - 1))
    return first is None or first != second


def shares_draws(backend: Backend, public_batch: Any) -> bool:
    """Whether records that are differentiated together would share random numbers; nothing is left changed."""
    if backend.name != "hooks" or not _has_finite_weights(backend.module):
        return False
    probe = Probe(backend.module, backend.loss_function, backend.groups)
    with random_state_kept(), parameters_kept(backend.module):
        return draws_for_several(probe, take(public_batch, slice(0, RECORDS)))


def _draws_for_a_record(probe: Probe, batch: Any, size: int) -> list[float] | None:
    """How many numbers torch draws for a record, draw by draw; None if there are others."""
    held = held_generators(probe.module)
    with untouched(probe.module), held_generators_kept(probe.module):
        seed_everywhere(SEED, held)
        before = HostStates(held)
        with DrawSizes() as draws:
            probe.user_loss(batch)
        return None if before.differ() or draws.unseen else [drawn / size for drawn in draws.sizes]


def _wrong_beside_extremes(backend: type[Backend], reference: Reference) -> str | None:
    touched = _extreme_reaches_others(backend, reference.probe, reference.batch, reference.tolerance)
    return f"would let one record change the gradients of others: {EXTREMES}" if touched else None


def _checked(probe: Probe, batch: Any) -> Reference:
    check_repeatable(probe, batch)
    check_backward_is_not_needed(probe, batch)
    check_records_apart(probe, batch)
    check_nothing_changed(probe, batch)
    check_no_memory(probe, batch)
    reference = make_reference(probe, batch)
    check_mean(reference)
    return reference


def _wrong_rows(backend: type[Backend], reference: Reference) -> str | None:
    fault = _first_disagreement(backend, reference)
    finer = in_double(reference.probe, reference.batch) if fault else None
    return _first_disagreement(backend, make_reference(finer, reference.batch)) if finer else fault


def _first_disagreement(backend: type[Backend], reference: Reference) -> str | None:
    probe, n = reference.probe, len(reference.rows)
    with probe.conditions():
        gradients = backend(probe.module, probe.loss_function(), probe.groups)
        for which in (list(range(n)), [1, *range(1, n - 1)]):
            rows, right = gradients(take(reference.batch, which)), reference.rows[which]
            fault = disagreement(rows, right, probe.groups, reference.tolerance)
            if fault:
                return fault
    return None


def _wrong_at_work(backend: type[Backend], reference: Reference) -> str | None:
    """Faults that show only in the precision of training, as far as rounding lets one see, or with random numbers."""
    probe = replace(reference.probe, in_double=False)
    batch = take(reference.batch, slice(0, 2))
    right = probe.rows(batch)
    with probe.conditions():
        rows = backend(probe.module, probe.loss_function(), probe.groups)(batch)
    fault = disagreement(rows, right, probe.groups, GROSS_ERROR)
    if fault:
        return fault
    with untouched(probe.module):
        backend(probe.module, probe.user_loss, probe.groups)(batch)
    return None


def check_repeatable(probe: Probe, batch: Any) -> None:
    """Raises ConfigurationError if training_step draws random numbers that no seed decides on.

    Records that are differentiated together may share them, and nothing would show it.
    """
    some = take(batch, slice(0, 2))
    first, *others = (probe.gradient(some) for _ in range(CALLS))
    if not all(close(first, other, probe.tolerance(some)) for other in others):
        raise ConfigurationError(
            "The same records have another gradient at another call, with all random numbers seeded: training_step "
            "draws from a generator that cannot be watched (secrets, a default_rng() of its own or in a global "
            "variable), or counts its calls outside the module. Draw from torch, random or numpy.random, or make the "
            "generator an attribute of the module."
        )


def check_backward_is_not_needed(probe: Probe, batch: Any) -> None:
    """Raises ConfigurationError if autograd sees less of the loss than an ordinary backward pass."""
    if not close(probe.gradient(batch), probe.gradient_by_backward(batch), probe.tolerance(batch)):
        raise ConfigurationError(REENTRANT)


def check_records_apart(probe: Probe, batch: Any) -> None:
    """Raises ConfigurationError if the effect of replacing some records depends on the others.

    For a mean over records the gradient is G(a, b) = A(a) + B(b), so G(a, b) − G(a′, b) − G(a, b′) + G(a′, b′) = 0.
    With the same seed for all four this holds for random losses too, in training mode.
    """
    if _mixed(probe, batch):
        raise ConfigurationError(f"The gradient of a record depends on the other records in its batch. {_mixer(probe)}")


def check_records_apart_by_chance(probe: Probe, batch: Any) -> None:
    """Raises ConfigurationError if records touch each other with some random numbers."""
    if mixes_sometimes(probe, batch):
        raise ConfigurationError(
            f"With some random numbers the gradient of a record depends on the others in its batch. {_mixer(probe)}"
        )


def check_extremes_apart(backend: type[Backend], probe: Probe, batch: Any) -> None:
    """Raises ConfigurationError if a record with an extreme value changes what a backend gives for the others."""
    if _extreme_reaches_others(backend, probe, batch, probe.tolerance(batch)):
        raise ConfigurationError(
            f"One record would change the gradients of all others: {EXTREMES}. Treat each record by itself before the "
            "mean is taken, or use gradients='loop', in which a record is a batch of its own."
        )


def _extreme_reaches_others(backend: type[Backend], probe: Probe, batch: Any, tolerance: float) -> bool:
    with probe.conditions():
        gradients = backend(probe.module, probe.loss_function(), probe.groups)
        right = gradients(batch)[1:]
        for extreme in extreme_batches(batch, row=0):
            try:
                others = gradients(extreme)[1:]
            except Exception:  # what is raised ends a training, and nothing is released
                continue
            if disagreement(others, right, probe.groups, tolerance):
                return True
    return False


def _mixed(probe: Probe, batch: Any, seed: int = SEED) -> bool:
    n = batch_size(batch)
    share = max(1, n // 4)
    a, other_a, b, other_b = ([i % n for i in range(part * share, (part + 1) * share)] for part in range(4))
    both, first, second, none = (
        probe.gradient(take(batch, positions), seed)
        for positions in (a + b, other_a + b, a + other_b, other_a + other_b)
    )
    return not close(both + none, first + second, probe.tolerance(batch))


def mixes_sometimes(probe: Probe, batch: Any) -> bool:
    """Whether records touch each other with some random numbers, as with a MixUp that a coin decides on.

    It matters where the loss is called on several records at once; alone, or under vmap, a record has no other.
    """
    probe = replace(probe, is_quiet=False)
    at_levels = (replace(probe, is_quiet=True, level=level) for level in LEVELS)
    return any(_mixed(probe, batch, seed) for seed in SEEDS) or any(
        _mixed_if_it_runs(way, batch, seed) for way in at_levels for seed in SEEDS_AT_A_LEVEL
    )


def _mixed_if_it_runs(probe: Probe, batch: Any, seed: int) -> bool:
    """The same with random numbers so extreme that code may not be made for them, such as log(0)."""
    try:
        return bool(torch.isfinite(probe.gradient(batch, seed)).all()) and _mixed(probe, batch, seed)
    except Exception:  # whatever the user's code raises then
        return False


def check_nothing_changed(probe: Probe, batch: Any) -> None:
    """Raises ConfigurationError if the training step changes a buffer, a parameter or what else a checkpoint holds."""
    with probe.conditions():
        before, beside = named_tensors(probe.module), saved_beside_tensors(probe.module)
        probe.gradient_leaving_traces(batch)
        check_unchanged(probe.module, before, beside)


def check_no_memory(probe: Probe, batch: Any) -> None:
    """Raises ConfigurationError if a batch has another gradient after the training step has seen another batch."""
    half = batch_size(batch) // 2
    one, other = take(batch, slice(0, half)), take(batch, slice(half, 2 * half))
    with probe.conditions():
        before = attributes(probe.module)
        first, _, again = (probe.gradient_leaving_traces(piece) for piece in (one, other, one))
        kept = sorted(name for name, value in attributes(probe.module).items() if before.get(name) is not value)
    if not close(first, again, probe.tolerance(batch)):
        where = f" (it sets {', '.join(kept)})" if kept else ""
        raise ConfigurationError(
            f"training_step remembers: the same batch has another gradient after another batch was seen{where}. "
            "Records of earlier batches must not reach later ones: start every call afresh; for schedules use "
            "self.global_step."
        )


def check_mean(reference: Reference) -> None:
    """Raises ConfigurationError unless the loss of a batch is the mean over its records."""
    probe, rows, tolerance = reference.probe, reference.rows, reference.tolerance
    largest = int(rows.norm(dim=1).argmax())
    alone = rows[largest]
    if not alone.any():
        raise ConfigurationError(
            "The gradient of every public record is zero, so nothing can be checked. See whether the loss depends on "
            "the trainable parameters, and whether they all start at zero."
        )
    twice = probe.gradient(take(reference.batch, [largest, largest]))
    if close(twice, 2 * alone, tolerance):
        raise ConfigurationError(
            "training_step returns a loss that is summed over the batch. Return the mean over the records, "
            "e.g. reduction='mean'."
        )
    if not close(twice, alone, tolerance):
        factor = (twice @ alone / (alone @ alone)).item()
        raise ConfigurationError(
            f"training_step returns a loss that is not a mean over the records: for a batch that holds the same record "
            f"twice the gradient is {factor:.3g} times as large (1 for a mean, 2 for a sum). Average every term over "
            "the records."
        )
    size = magnitudes(rows, probe.groups).square().mean(dim=0, keepdim=True).sqrt()
    errors = relative_errors(magnitudes((probe.gradient(reference.batch) - rows.mean(dim=0))[None], probe.groups), size)
    if not bool((errors <= tolerance).all()):
        raise ConfigurationError(
            "The gradient of a batch is not the mean of the gradients of its records, each taken alone: they differ "
            f"{worst(errors, probe.groups)}. Either training_step treats a batch of one differently (squeeze() without "
            "a dimension, broadcasting), or it draws random numbers by other means than torch, or records are not "
            "weighted equally (class weights, means over tokens): average within each record first, then over records."
        )


def _some_records(probe: Probe, public_batch: Any) -> Any:
    size = min(batch_size(public_batch), RECORDS)
    if size < 2:
        raise ConfigurationError(
            f"The public batch has {size} record{'' if size else 's'}; checking the gradients takes 2 at least, better "
            f"{RECORDS}. Use a larger batch size for the auxiliary data."
        )
    return finite_records(probe, take(public_batch, slice(0, size)), size)


def _mixer(probe: Probe) -> str:
    norms = [name for name, part in probe.module.named_modules() if isinstance(part, _BatchNorm) and _mixes(part)]
    if norms:
        return (
            f"BatchNorm mixes them: {', '.join(norms)}. Replace it by nn.GroupNorm "
            "(opacus.validators.ModuleValidator.fix does it), or freeze it with .eval()."
        )
    return (
        "Records must not mix before their gradients are clipped. Look for contrastive losses, MixUp or CutMix, "
        "statistics over the batch (use nn.GroupNorm or nn.LayerNorm), and means over something else than records, "
        "such as tokens or class weights: average within each record first, then over records."
    )


def _mixes(norm: _BatchNorm) -> bool:
    return norm.training or norm.running_mean is None
