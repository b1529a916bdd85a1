"""The right per-sample gradients of a few public records, which backends are held against."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import take
from lightning_gep.gradients.comparison import close
from lightning_gep.gradients.host_states import held_generators, held_generators_kept
from lightning_gep.gradients.interface import GradientError, LossFunction
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.plain import backward_gradient, plain_gradient
from lightning_gep.gradients.precision import doubled, tolerance_of, widened
from lightning_gep.gradients.randomness import quiet, seeded
from lightning_gep.gradients.state import evaluation_mode, untouched

SEED, OTHER_SEED = 1, 2
REENTRANT = (
    "The gradient can only be computed by backward(), as with gradient checkpointing in its reentrant form. "
    "Call torch.utils.checkpoint.checkpoint with use_reentrant=False, or do without it."
)


@dataclass(frozen=True)
class Probe:
    """Ordinary gradients of a loss, with seeded random numbers; nothing that is run leaves a trace in the module."""

    module: nn.Module
    user_loss: LossFunction
    groups: ParameterGroups
    in_double: bool = False
    is_quiet: bool = False
    """Without dropout and with constants for random numbers."""
    level: float = 0.5
    """That constant, for numbers from a range."""
    in_evaluation_mode: bool = False

    @contextmanager
    def conditions(self) -> Iterator[None]:
        """The module in the precision and mode of this probe, and as it was on leaving."""
        with ExitStack() as stack:
            stack.enter_context(untouched(self.module))
            stack.enter_context(held_generators_kept(self.module))
            if self.in_double:
                stack.enter_context(doubled(self.module))
            if self.in_evaluation_mode:
                stack.enter_context(evaluation_mode(self.module))
            yield

    def loss_function(self, seed: int = SEED) -> LossFunction:
        """The user's loss as this probe evaluates it, under `conditions`."""
        loss = quiet(self.user_loss, self.level) if self.is_quiet else self.user_loss
        return seeded(widened(loss) if self.in_double else loss, seed, held_generators(self.module))

    def gradient(self, batch: Any, seed: int = SEED) -> Tensor:
        """The gradient of the loss on the whole batch (p)."""
        with self.conditions():
            return self.gradient_leaving_traces(batch, seed)

    def gradient_leaving_traces(self, batch: Any, seed: int = SEED) -> Tensor:
        """The same, under conditions that the caller has set, with whatever the training step does to the module."""
        try:
            return plain_gradient(self.loss_function(seed), self._trainable(), self.groups, batch)
        except GradientError as error:
            raise ConfigurationError(str(error)) from error
        except RuntimeError as error:
            if "checkpoint" not in str(error).lower():
                raise
            raise ConfigurationError(REENTRANT) from error

    def gradient_by_backward(self, batch: Any) -> Tensor:
        """The gradient of the loss on the whole batch as ordinary training computes it."""
        with self.conditions():
            return backward_gradient(self.loss_function(), self._trainable(), self.groups, batch)

    def _trainable(self) -> dict[str, nn.Parameter]:
        parameters = dict(self.module.named_parameters())
        return {name: parameters[name] for name in self.groups.shapes}

    def rows(self, batch: Any) -> Tensor:
        """The gradients of the records, each computed alone (n × p)."""
        with self.conditions():
            return LoopGradients(self.module, self.loss_function(), self.groups)(batch)

    def tolerance(self, batch: Any) -> float:
        """The relative difference that rounding can explain."""
        with self.conditions():
            return tolerance_of(self.module, self.loss_function(), batch)


@dataclass(frozen=True)
class Reference:
    """The gradients of public records (n × p), each computed alone, with a loss that is not random."""

    probe: Probe
    batch: Any
    rows: Tensor
    tolerance: float


def make_reference(probe: Probe, batch: Any) -> Reference:
    """The gradients of the records of a public batch, under the first conditions in which the loss stands still."""
    tolerance = probe.tolerance(batch)
    still = _still(probe, batch, tolerance)
    try:
        rows = still.rows(batch)
    except GradientError as error:
        raise ConfigurationError(str(error)) from error
    except Exception as error:
        raise ConfigurationError(
            f"training_step works on a batch but not on a single record: {in_short(error)}. Per-sample gradients see "
            "each record as a batch of one; look for squeeze() without a dimension."
        ) from error
    return Reference(still, batch, rows, tolerance)


def in_double(probe: Probe, batch: Any) -> Probe | None:
    """The probe in double precision; None if it is already, or if the loss does not run in it."""
    if probe.in_double:
        return None
    finer = replace(probe, in_double=True)
    try:
        finer.gradient(batch)
    except Exception:  # code that insists on a dtype, a device without float64: the checks are coarser then
        return None
    return finer


def finite_records(probe: Probe, batch: Any, size: int) -> Any:
    """The records of the batch whose gradients are finite."""
    if bool(torch.isfinite(probe.gradient(batch)).all()):
        return batch
    finite = [i for i in range(size) if bool(torch.isfinite(probe.gradient(take(batch, slice(i, i + 1)))).all())]
    if len(finite) < 2:
        raise ConfigurationError(
            f"Of {size} public records {size - len(finite)} have a gradient that is not finite, too many to check "
            "anything. Look for log(0), a division by zero or an overflow in training_step."
        )
    return take(batch, finite)


def in_short(error: Exception) -> str:
    """The kind of an error and the beginning of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'…' if len(text) > 160 else ''}"


def _still(probe: Probe, batch: Any, tolerance: float) -> Probe:
    """The probe least unlike training whose gradient stays the same with other random numbers.

    Evaluation mode comes last: what happens in training mode only is not seen in it. A loss that stays random keeps
    the training mode; seeding holds what does not depend on the size of the batch, and the comparisons judge the rest.
    """
    without_draws = replace(probe, is_quiet=True)
    for candidate in (probe, without_draws, replace(without_draws, in_evaluation_mode=True)):
        if close(candidate.gradient(batch), candidate.gradient(batch, OTHER_SEED), tolerance):
            return candidate
    return without_draws
