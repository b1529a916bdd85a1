"""Records are kept apart inside training_step: what it must not do is looked for on public records.

Under `functional` and `loop` a record is alone in its call and cannot meet another in it; it could only by what
training_step keeps between calls, by a random number that some records share and others do not, or by what is written
to the module. That is checked here. `mixing` keeps records apart on their way into a batch, `Backend.__call__` keeps
chunks apart, and `hooks`, which sees a whole chunk at once, has its own checks.

A loss that is no mean over independent records is refused as well: it would train another model than the user wrote.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.comparison import close, tolerance_of
from lightning_gep.gradients.interface import GradientError, LossFunction, scalar, trainable
from lightning_gep.gradients.loop import LoopGradients, plain_gradient
from lightning_gep.gradients.randomness import held_generators, seeded
from lightning_gep.gradients.state import SavedState, attributes, in_mode, untouched

RECORDS = 6
"""Public records that the checks use: enough to see mixing, few enough to loop over."""
SEED, OTHER_SEED = 1, 2
CALLS = 9
"""An unseeded coin flip agrees on all 9 calls with probability 1/256."""
FLIPPED_RELUS = 0.05
"""How much gradients of the same records may differ between batch sizes. Only utility rests on this comparison."""
REENTRANT = (
    "The gradient can only be computed by backward(), as with gradient checkpointing in its reentrant form. "
    "Call torch.utils.checkpoint.checkpoint with use_reentrant=False, or do without it."
)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class Probe:
    """Gradients of a loss on public records, with every random number seeded; nothing leaves a trace in the module."""

    module: nn.Module
    user_loss: LossFunction
    groups: ParameterGroups
    records: Any
    """A few public records whose gradients are finite."""

    def loss(self, seed: int = SEED) -> LossFunction:
        """The user's loss, which draws the same random numbers at every call."""
        return seeded(self.user_loss, seed, held_generators(self.module))

    def gradient(self, batch: Any, seed: int = SEED) -> Tensor:
        """The gradient of the loss on the whole batch (p)."""
        with untouched(self.module):
            return self.gradient_leaving_traces(batch, seed)

    def gradient_leaving_traces(self, batch: Any, seed: int = SEED) -> Tensor:
        """The same, with whatever training_step does to the module."""
        try:
            return plain_gradient(self.loss(seed), trainable(self.module, self.groups), self.groups, batch)
        except GradientError as error:
            raise ConfigurationError(str(error)) from error
        except RuntimeError as error:
            if "checkpoint" not in str(error).lower():
                raise
            raise ConfigurationError(REENTRANT) from error

    def gradient_by_backward(self) -> Tensor:
        """The gradient of the loss on all records as ordinary training computes it; `.grad` is put back."""
        parameters = trainable(self.module, self.groups)
        with untouched(self.module), torch.enable_grad():  # which puts .grad back, too
            for p in parameters.values():
                p.grad = torch.zeros_like(p)
            loss = scalar(self.loss()(self.records))
            if loss.requires_grad:
                loss.backward()
            return self.groups.flatten({name: p.grad for name, p in parameters.items() if p.grad is not None})

    def rows(self) -> Tensor:
        """The gradients of the records, each computed alone and with the same random numbers (n × p)."""
        try:
            with untouched(self.module):
                return LoopGradients(self.module, self.loss(), self.groups)(self.records)
        except GradientError as error:
            raise ConfigurationError(str(error)) from error
        except Exception as error:
            raise ConfigurationError(
                f"training_step works on a batch but not on a single record: {in_short(error)}. Per-sample gradients "
                "see each record as a batch of one; look for squeeze() without a dimension."
            ) from error

    @cached_property
    def tolerance(self) -> float:
        """The relative difference that rounding can explain."""
        with untouched(self.module):
            return tolerance_of(self.module, self.loss(), self.records)

    def is_random(self) -> bool:
        """Whether the gradient depends on random numbers, in the mode the module is in."""
        first, second = (self.gradient(self.records, seed) for seed in (SEED, OTHER_SEED))
        return not close(first, second, self.tolerance)


def make_probe(module: nn.Module, loss: LossFunction, groups: ParameterGroups, public_batch: Any) -> Probe:
    """A probe with those of the first public records whose gradients are finite."""
    size = min(batch_size(public_batch), RECORDS)
    if size < 2:
        raise ConfigurationError(
            f"The public batch has {size} record{'' if size else 's'}; checking the gradients takes 2 at least, better "
            f"{RECORDS}. Use a larger batch size for the auxiliary data."
        )
    probe = Probe(module, loss, groups, take(public_batch, slice(0, size)))
    if bool(torch.isfinite(probe.gradient(probe.records)).all()):
        return probe
    single = [probe.gradient(take(probe.records, slice(i, i + 1))) for i in range(size)]
    finite = [i for i, gradient in enumerate(single) if bool(torch.isfinite(gradient).all())]
    if len(finite) < 2:
        raise ConfigurationError(
            f"Of {size} public records {size - len(finite)} have a gradient that is not finite, too many to check "
            "anything. Look for log(0), a division by zero or an overflow in training_step."
        )
    return Probe(module, loss, groups, take(probe.records, finite))


def check_loss(probe: Probe) -> None:
    """Raises ConfigurationError unless per-sample gradients of the loss make sense, as far as public records show.

    No record changes what another contributes, the loss changes no parameter or buffer and does not depend on earlier
    calls, all its random numbers can be seeded, and it is the mean over the records.
    """
    check_repeatable(probe)
    if not close(probe.gradient(probe.records), probe.gradient_by_backward(), probe.tolerance):
        raise ConfigurationError(REENTRANT)
    check_records_apart(probe)
    with untouched(probe.module):
        before = SavedState(probe.module)
        probe.gradient_leaving_traces(probe.records)
        before.check(writes=True)  # a later record may change what is written without effect now
    check_no_memory(probe)
    check_mean(probe)


def check_repeatable(probe: Probe) -> None:
    """Raises ConfigurationError if training_step draws random numbers that no seed determines.

    Records that are differentiated together may share them, and nothing would show it.
    """
    some = take(probe.records, slice(0, 2))
    first, *others = (probe.gradient(some) for _ in range(CALLS))
    if not all(close(first, other, probe.tolerance) for other in others):
        raise ConfigurationError(
            "The same records gave different gradients on repeated calls, although all generators were seeded: "
            "training_step draws from a generator that cannot be watched (secrets, a default_rng() of its own or in a "
            "global variable), or counts its calls outside the module. Draw from torch, random or numpy.random, or "
            "make the generator an attribute of the module."
        )


def check_records_apart(probe: Probe) -> None:
    """Raises ConfigurationError if the effect of replacing some records depends on the others.

    For a mean over records the gradient is G(a, b) = A(a) + B(b), so G(a, b) − G(a′, b) − G(a, b′) + G(a′, b′) = 0.
    With the same seed for all four this holds for random losses too, in training mode.
    """
    n = batch_size(probe.records)
    share = max(1, n // 4)
    a, other_a, b, other_b = ([i % n for i in range(part * share, (part + 1) * share)] for part in range(4))
    both, first, second, none = (
        probe.gradient(take(probe.records, positions))
        for positions in (a + b, other_a + b, a + other_b, other_a + other_b)
    )
    norms = [name for name, part in probe.module.named_modules() if _is_mixing_norm(part)]
    if close(both + none, first + second, probe.tolerance):
        return
    if norms:
        fix = (
            f"BatchNorm mixes them: {', '.join(norms)}. Replace it by nn.GroupNorm "
            "(opacus.validators.ModuleValidator.fix does it), or freeze it with .eval()."
        )
    else:
        fix = (
            "Records must not mix before their gradients are clipped. Look for contrastive losses, MixUp or CutMix, "
            "statistics over the batch (use nn.GroupNorm or nn.LayerNorm), and means over something else than records, "
            "such as tokens or class weights: average within each record first, then over records."
        )
    raise ConfigurationError(f"The gradient of a record depends on the other records in its batch. {fix}")


def _is_mixing_norm(part: nn.Module) -> bool:
    return isinstance(part, BATCH_NORMS) and (part.training or part.running_mean is None)


def check_no_memory(probe: Probe) -> None:
    """Raises ConfigurationError if a batch has another gradient after training_step has seen another batch."""
    half = batch_size(probe.records) // 2
    one, other = take(probe.records, slice(0, half)), take(probe.records, slice(half, 2 * half))
    with untouched(probe.module):
        before = attributes(probe.module)
        first, _, again = (probe.gradient_leaving_traces(batch) for batch in (one, other, one))
        kept = sorted(name for name, value in attributes(probe.module).items() if before.get(name) is not value)
    if not close(first, again, probe.tolerance):
        where = f" (it sets {', '.join(kept)})" if kept else ""
        raise ConfigurationError(
            f"training_step carries state: a batch's gradient changes after another batch was processed{where}. "
            "Records of earlier batches must not reach later ones: start every call afresh; for schedules use "
            "self.global_step."
        )


def check_mean(probe: Probe) -> None:
    """Raises ConfigurationError unless the loss of a batch is the mean over its records.

    A random loss is compared in evaluation mode, and not at all if it is random there, too: a record draws other
    numbers in a batch than alone.
    """
    rows = probe.rows()
    if not rows.any():
        raise ConfigurationError(
            "The gradient of every public record is zero, so nothing can be checked. See whether the loss depends on "
            "the trainable parameters, and whether they all start at zero."
        )
    if not probe.is_random():
        _check_mean(probe, rows)
        return
    with in_mode(probe.module, training=False):
        if not probe.is_random():
            _check_mean(probe, probe.rows())


def _check_mean(probe: Probe, rows: Tensor) -> None:
    # Batches of different sizes round differently, which flips ReLUs whose inputs are close to zero.
    tolerance = max(probe.tolerance, FLIPPED_RELUS)
    largest = int(rows.norm(dim=1).argmax())
    alone = rows[largest]
    twice = probe.gradient(take(probe.records, [largest, largest]))
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
    difference = (probe.gradient(probe.records) - rows.mean(dim=0)).norm() / rows.norm(dim=1).square().mean().sqrt()
    if not difference <= tolerance:
        raise ConfigurationError(
            "The gradient of a batch is not the mean of the gradients of its records, each taken alone: they differ "
            f"by {difference.item():.2g} of their size. Either training_step treats a batch of one differently "
            "(squeeze() without a dimension, broadcasting), or records are not weighted equally (class weights, means "
            "over tokens): average within each record first, then over records."
        )


def in_short(error: Exception) -> str:
    """The type of an error and the beginning of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'…' if len(text) > 160 else ''}"
