"""Records are kept apart inside training_step: what it must not do is looked for on public records.

Under `functional` and `loop` a record is alone in its call and cannot meet another in it; it could only by what
training_step keeps between calls, by a random number that some records share and others do not, or by what is written
to the module. That is checked here. `mixing` keeps records apart on their way into a batch, `Backend.__call__` keeps
chunks apart, and `hooks`, which sees a whole chunk at once, has its own checks.

A loss that is no mean over independent records is refused as well: it would train another model than the user wrote.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.interface import Backend, LossFunction, scalar
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.randomness import held_generators, seeded
from lightning_gep.gradients.state import in_mode, state_unchanged, untouched

RECORDS = 6
"""Public records that the checks use: enough to see mixing, few enough to loop over."""
SEED, OTHER_SEED = 1, 2
CALLS = 9
"""An unseeded coin flip agrees on all 9 calls with probability 1/256."""
TOLERANCES, HALF_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}, 5e-2
"""Relative differences that rounding can explain."""
GROSS_ERROR = 0.2
"""Rounding may push a few activations of a single record across a kink, which moves its gradient by no more."""
MOVED = 1e-3
"""How far weights are moved to see whether training_step writes to them."""
SHARE_OF_ROW, SHARE_OF_LARGEST = 0.1, 1e-3
"""A gradient that is zero by cancellation has rounding errors of larger numbers: every parameter is forgiven these
shares of what the whole gradient of its record, and the largest among the records, are forgiven."""
FLIPPED_RELUS = 0.05
"""Gradients of the same records may differ by this between batch sizes. Only utility rests on the comparison."""
CHECKPOINTING = (
    "Gradient checkpointing, as it is used here, does not give the gradients of single records. Turn it off, e.g. by "
    "model.gradient_checkpointing_disable(): records are differentiated in chunks that fit into memory. To keep it, "
    "call checkpoint with use_reentrant=False, and draw random numbers inside from torch only."
)
NORM_FIX = "Replace it by nn.GroupNorm, or freeze it with .eval()."
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class PublicTrial:
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
            return LoopGradients(self.module, self.loss(seed), self.groups).gradient(batch)
        except RuntimeError as error:
            if "checkpoint" not in str(error).lower():
                raise
            raise ConfigurationError(CHECKPOINTING) from error

    def gradient_by_backward(self) -> Tensor:
        """The gradient of the loss on all records as ordinary training computes it."""
        parameters = {name: p for name, p in self.module.named_parameters() if name in self.groups.shapes}
        with untouched(self.module), torch.enable_grad():  # which puts .grad back, too
            for p in parameters.values():
                p.grad = torch.zeros_like(p)
            loss = scalar(self.loss()(self.records))
            if loss.requires_grad:
                loss.backward()
            return self.groups.flatten({name: p.grad for name, p in parameters.items() if p.grad is not None})

    def rows(self, kind: type[Backend] = LoopGradients, batch: Any = None, seed: int = SEED, **settings: Any) -> Tensor:
        """The gradients of the records, or of another batch, by a backend (n × p); by default each alone."""
        with untouched(self.module):
            backend = kind(self.module, self.loss(seed), self.groups, **settings)
            return backend(self.records if batch is None else batch)

    @cached_property
    def tolerance(self) -> float:
        """The relative difference that rounding can explain, given the coarsest dtype on the way to the loss.

        Autocast inside the loss is seen by what it keeps for the backward pass.
        """
        seen = {p.dtype for p in self.module.parameters()}

        def note(tensor: Tensor) -> Tensor:
            seen.add(tensor.dtype)
            return tensor.detach()  # a node that keeps its own output, as tanh does, would never be freed

        keeping = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with untouched(self.module), torch.enable_grad(), keeping:
            self.loss()(self.records)
        return max(TOLERANCES.get(dtype, HALF_TOLERANCE) for dtype in seen if dtype.is_floating_point)

    def is_random(self) -> bool:
        """Whether the gradient depends on random numbers, in the mode the module is in."""
        first, second = (self.gradient(self.records, seed) for seed in (SEED, OTHER_SEED))
        return not close(first, second, self.tolerance)


def make_trial(module: nn.Module, loss: LossFunction, groups: ParameterGroups, public_batch: Any) -> PublicTrial:
    """A trial on those of the first public records whose gradients are finite."""
    size = min(batch_size(public_batch), RECORDS)
    if size < 2:
        raise ConfigurationError(
            f"The public batch is too small (records: {size}): checking the gradients takes 2 at least, better "
            f"{RECORDS}. Use a larger batch size for the auxiliary data."
        )
    trial = PublicTrial(module, loss, groups, take(public_batch, slice(0, size)))
    if bool(torch.isfinite(trial.gradient(trial.records)).all()):
        return trial
    finite = [i for i in range(size) if bool(torch.isfinite(trial.gradient(take(trial.records, [i]))).all())]
    if len(finite) < 2:
        raise ConfigurationError(
            f"Of {size} records {size - len(finite)} have a gradient that is not finite, too many to check "
            "anything. Look for log(0), a division by zero or an overflow in training_step, or give aux_dataloader "
            "records on which it is finite."
        )
    return PublicTrial(module, loss, groups, take(trial.records, finite))


def check_loss(trial: PublicTrial) -> bool:
    """Raises ConfigurationError unless per-sample gradients of the loss make sense, as far as public records show.

    Returns whether the loss of a batch is a weighted mean over its records, as by tokens or classes.
    """
    check_repeatable(trial)
    if not close(trial.gradient(trial.records), trial.gradient_by_backward(), trial.tolerance):
        raise ConfigurationError(CHECKPOINTING)
    weighted = not check_records_apart(trial)
    # Also written without effect: a later record may change what is written.
    with untouched(trial.module), state_unchanged(trial.module, or_written=True):
        trial.gradient_leaving_traces(trial.records)
    # A mask or norm that the weights have already shows when they differ from it, as after a noisy step.
    with untouched(trial.module):
        for parameter in filter(torch.is_floating_point, trial.module.parameters()):
            parameter.data.add_(MOVED * torch.randn_like(parameter))
        with state_unchanged(trial.module):
            trial.gradient_leaving_traces(trial.records)
    check_no_memory(trial)
    return not check_mean(trial) or weighted


def check_repeatable(trial: PublicTrial) -> None:
    """Raises ConfigurationError if training_step draws random numbers that no seed determines.

    Records that are differentiated together may share them, and nothing would show it.
    """
    some = take(trial.records, slice(0, 2))
    first, *others = (trial.gradient(some) for _ in range(CALLS))
    if not all(close(first, other, trial.tolerance) for other in others):
        raise ConfigurationError(
            "The same records gave different gradients although all generators were seeded: training_step draws from "
            "one that cannot be watched (secrets, a default_rng() of its own or in a global variable), or counts its "
            "calls. Draw from torch, random or numpy.random, or make the generator an attribute of the module."
        )


def check_records_apart(trial: PublicTrial) -> bool:
    """Raises ConfigurationError if the effect of replacing some records depends on the others.

    For a mean over records the gradient is G(a, b) = A(a) + B(b), so G(a, b) − G(a′, b) − G(a, b′) + G(a′, b′) = 0.
    With the same seed for all four this holds for random losses too, in training mode. False for a weighted mean, in
    which records change each other's weight but nothing else: alone, as they are differentiated, they do not.
    """
    n = batch_size(trial.records)
    share = max(1, n // 4)
    a, other_a, b, other_b = ([i % n for i in range(part * share, (part + 1) * share)] for part in range(4))
    batches = (take(trial.records, which) for which in (a + b, other_a + b, a + other_b, other_a + other_b))
    both, first, second, none = map(trial.gradient, batches)
    if close(both + none, first + second, trial.tolerance):
        return True
    mixing = norms_that_mix(trial.module)
    if not mixing and is_weighted_mean(trial):
        return False
    fix = (
        "Look for contrastive losses, MixUp, CutMix, and statistics over the batch (use nn.GroupNorm or nn.LayerNorm)."
    )
    if mixing:
        fix = f"BatchNorm mixes them: {', '.join(mixing)}. {NORM_FIX}"
    raise ConfigurationError(f"The gradient of a record depends on the other records in its batch. {fix}")


def norms_that_mix(module: nn.Module) -> dict[str, Any]:
    """Layers of BatchNorm by name that use the statistics of their batch, in the mode they are in."""
    norms = ((name, part) for name, part in module.named_modules() if isinstance(part, BATCH_NORMS))
    return {name: norm for name, norm in norms if norm.training or norm.running_mean is None}


def is_weighted_mean(trial: PublicTrial) -> bool:
    """Whether batches have a mean of the gradients of their records, each taken alone, with a weight for each record.

    A random loss is compared in evaluation mode.
    """
    with in_mode(trial.module, training=False) if trial.is_random() else nullcontext():
        try:
            rows, whole = trial.rows(), trial.gradient(trial.records)
        except Exception:  # the checks that follow meet it too, and report it in words
            return False
        if not bool(torch.isfinite(rows).all()):  # of a record alone, as by its standard deviation over the batch
            return False
        # The least squares problem in the coordinates of an orthonormal basis of the rows.
        basis, triangle = torch.linalg.qr(rows.double().T)
        weights, _ = nnls(triangle.cpu().numpy(), (basis.T @ whole.double()).cpu().numpy())
        weights = torch.from_numpy(weights).to(rows)
        half = slice(0, (len(rows) + 1) // 2)
        some = trial.gradient(take(trial.records, half))
        return (
            abs(weights.sum().item() - 1) <= trial.tolerance
            and close(weights @ rows, whole, trial.tolerance)
            and close(weights[half] @ rows[half] / weights[half].sum(), some, trial.tolerance)
        )


def check_no_memory(trial: PublicTrial) -> None:
    """Raises ConfigurationError if a batch has another gradient after training_step has seen another batch."""
    half = batch_size(trial.records) // 2
    one, other = take(trial.records, slice(0, half)), take(trial.records, slice(half, 2 * half))
    with untouched(trial.module) as kept:
        first, _, again = (trial.gradient_leaving_traces(batch) for batch in (one, other, one))
    if not close(first, again, trial.tolerance):
        where = f" (it sets {', '.join(kept)})" if kept else ""
        raise ConfigurationError(
            f"training_step carries state: a batch's gradient changes after another batch was processed{where}. Start "
            "every call afresh; for schedules use self.global_step."
        )


def check_mean(trial: PublicTrial) -> bool:
    """Raises ConfigurationError unless the loss of a batch is the mean over its records; False for a weighted mean.

    A random loss is compared in evaluation mode, and not at all if it is random there, too: a record draws other
    numbers in a batch than alone.
    """
    if not _rows_alone(trial).any():
        raise ConfigurationError(
            "The gradient of every record tried is zero, so nothing can be checked. Make the loss depend on the "
            "trainable parameters, and do not start all of them at zero."
        )
    with in_mode(trial.module, training=False) if trial.is_random() else nullcontext():
        return trial.is_random() or _compare_with_mean(trial, _rows_alone(trial))


def _rows_alone(trial: PublicTrial) -> Tensor:
    try:
        return trial.rows()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"training_step works on a batch but not on a single record: {in_short(error)}. Per-sample gradients see "
            "each record as a batch of one; look for squeeze() without a dimension."
        ) from error


def _compare_with_mean(trial: PublicTrial, rows: Tensor) -> bool:
    n, tolerance = len(rows), max(trial.tolerance, FLIPPED_RELUS)
    largest = int(rows.norm(dim=1).argmax())
    for positions in ([largest] * n, list(range(n))):  # in the first nothing can cancel
        whole, mean = trial.gradient(take(trial.records, positions)), rows[positions].mean(dim=0)
        if close(whole, n * mean, tolerance):
            raise ConfigurationError(
                "training_step returns a loss that is summed over the batch. Return the mean over the records, "
                "e.g. reduction='mean'."
            )
        difference = (whole - mean).norm() / rows[positions].norm(dim=1).square().mean().sqrt()
        if not difference <= tolerance:
            if is_weighted_mean(trial):
                return False
            raise ConfigurationError(
                "The gradient of a batch is not the mean of the gradients of its records, each taken alone: they "
                f"differ by {difference.item():.2g} of their size. Average every term of the loss within each record "
                "first, then over records, and treat a batch of one like any other (squeeze() without a dimension and "
                "broadcasting do not)."
            )
    return True


def close(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Whether two vectors are equal up to rounding, relative to the larger of them."""
    scale = max(first.norm().item(), second.norm().item())
    return (first - second).norm().item() <= tolerance * scale


def disagreement(rows: Tensor, right: Tensor, groups: ParameterGroups, tolerance: float) -> str | None:
    """Where per-sample gradients differ most from the right ones, in words, if by more than rounding."""
    if rows.shape != right.shape:
        return f"gave gradients of shape {tuple(rows.shape)} where {tuple(right.shape)} is right"
    size = _magnitudes(right, groups)
    row = size.norm(dim=1, keepdim=True)
    errors = _magnitudes(rows - right, groups) / (size + SHARE_OF_ROW * row + SHARE_OF_LARGEST * row.max())
    errors = errors.nan_to_num(nan=torch.inf)
    # What a backend drops is missing for every record.
    if bool((errors.median(dim=0).values <= tolerance).all()) and bool((errors <= max(GROSS_ERROR, tolerance)).all()):
        return None
    parameter = list(groups.shapes)[int(errors.amax(dim=0).argmax())]
    return f"gave gradients that differ by {errors.max().item():.2g} of their size in {parameter}"


def _magnitudes(rows: Tensor, groups: ParameterGroups) -> Tensor:
    """The norm of every parameter's part of every row (n × number of parameters)."""
    parts = rows.split([shape.numel() for shape in groups.shapes.values()], dim=1)
    return torch.stack([part.norm(dim=1) for part in parts], dim=1)


def in_short(error: BaseException) -> str:
    """The type of an error and the beginning of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'…' if len(text) > 160 else ''}"
