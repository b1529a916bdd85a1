"""Per-sample gradients of a LightningModule's training step."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import Precision
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor

from lightning_gep.errors import ConfigurationError
from lightning_gep.fresh_randomness import renew_random_states
from lightning_gep.gradients import choose_backend, microbatches, untouched
from lightning_gep.gradients.batches import take
from lightning_gep.gradients.checks import check_still_apart, shares_draws
from lightning_gep.gradients.host_states import HostStates, held_generators
from lightning_gep.gradients.interface import SharedDrawError
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.randomness import random_state_kept
from lightning_gep.gradients.state import noted_traces, state_unchanged
from lightning_gep.groups import ParameterGroups
from lightning_gep.poisson_loader import EmptyBatch
from lightning_gep.quiet import recorded_logs

OTHER_BATCHES = (1, 2, 3)
"""A training step may treat every other batch differently."""
PIECES_OF_A_BATCH, SMALLEST_PIECE = 8, 16
"""Fewer pieces would be filled up with more copies, more and smaller ones are slower."""


def equal_pieces(expected_records: int, most: int) -> int:
    """The size of all pieces of a batch, whatever is drawn into it; the last is filled up."""
    # With a standard deviation more than is expected, or every other batch would need one piece more.
    wanted = math.ceil((expected_records + expected_records**0.5) / PIECES_OF_A_BATCH)
    return min(most, max(SMALLEST_PIECE, wanted))


class StepGradients:
    """Differentiates `training_step` record by record, a microbatch at a time; nothing it logs gets out.

    With a `seed` everything random inside a step (dropout, public records and their labels) depends on seed and step;
    without one it is new at every step, whatever was seeded.
    """

    def __init__(
        self,
        module: LightningModule,
        precision: Precision,
        groups: ParameterGroups,
        *,
        microbatch: int,
        expected_records: int,
        seed: int | None,
    ) -> None:
        self.module, self.precision, self.groups = module, precision, groups
        self.microbatch, self.expected_records, self.seed = microbatch, expected_records, seed
        # float64 sums and norms are needed, and Apple's accelerator has none.
        device = next(module.parameters()).device
        self.device = torch.device("cpu") if device.type == "mps" else device
        self.kept: list[str] = []
        """Attributes of the module in which training_step keeps what it computed."""
        self.arguments: tuple[Any, ...] = ()
        """What Lightning passes to training_step after the batch."""

    def choose_backend(self, public_batch: Any, how: str) -> list[str]:
        """Bind the way gradients are computed, checked on a public batch; gives the names that training_step logs."""
        gets_index = is_param_in_hook_signature(self.module.training_step, "batch_idx", min_args=2)
        self.arguments = (0,) if gets_index else ()
        with recorded_logs(self.module) as recorder, train_mode(self.module):
            self.backend = choose_backend(self.module, self.loss, self.groups, public_batch, how)
            with random_state_kept(), untouched(self.module), noted_traces(self.module) as traces:
                self.backend(take(public_batch, slice(0, 2)))
        for index in OTHER_BATCHES if gets_index else ():
            self.arguments = (index,)
            self.check_again(public_batch, by_chance=False)
        self.kept = [name for name in traces if not name.rpartition(".")[2].startswith("_")]
        return recorder.names

    def check_again(self, public_batch: Any, *, by_chance: bool = True) -> None:
        """Raises ConfigurationError if training_step has begun to mix records since the backend was chosen.

        If it has begun to draw random numbers that records would share, gradients are computed in a loop from here on.
        """
        with recorded_logs(self.module), train_mode(self.module):
            if shares_draws(self.backend, public_batch):
                self._go_on_by_loop("training_step draws random numbers for a batch as a whole")
            check_still_apart(self.backend, public_batch, by_chance=by_chance)

    def loss(self, batch: Any) -> Tensor:
        """The loss of training_step on a batch, under the trainer's precision."""
        with self.precision.train_step_context():
            output = self.module.training_step(batch, *self.arguments)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise ConfigurationError("training_step returned no loss. Return the loss, or a dict with the key 'loss'.")
        return loss

    def of_private(self, batch: Any) -> Iterator[Tensor]:
        """Gradients of the records of a batch in microbatches; none for an empty batch.

        Raises ConfigurationError after the last one if training_step has changed a parameter, a buffer or other saved
        state: release nothing before they are exhausted.
        """
        if isinstance(batch, EmptyBatch):
            return
        held = held_generators(self.module)
        if self.seed is None:
            renew_random_states(held)
        begin_with = HostStates(held)
        with state_unchanged(self.module):
            for microbatch in microbatches(batch, self.private_microbatch):
                yield self._private_rows(microbatch, begin_with)

    def _private_rows(self, microbatch: Any, begin_with: HostStates) -> Tensor:
        """No random number is shared by some records of a step and not by all: see `Backend.__call__`."""
        try:
            return self.rows(microbatch, self.piece, begin_with)
        except SharedDrawError as error:
            self._go_on_by_loop(str(error))
            return self.rows(microbatch, self.piece, begin_with)

    def _go_on_by_loop(self, why: str) -> None:
        rank_zero_warn(
            f"{why}, which the records of a chunk would share. From here on gradients are computed record by record, "
            "which is slow: draw a number for every record, from torch."
        )
        by_loop = LoopGradients(self.module, self.loss, self.groups)
        by_loop.reason, by_loop.records_at_once = f"loop: {why}", self.backend.records_at_once
        self.backend = by_loop

    def rows(self, microbatch: Any, pieces_of: int | None = None, begin_with: HostStates | None = None) -> Tensor:
        """The gradients of a microbatch, a row each; what training_step logs is dropped."""
        with recorded_logs(self.module):
            return self.backend(microbatch, pieces_of, begin_with).to(self.device)

    @property
    def piece(self) -> int:
        """Private records that are differentiated together, always as many: see `Backend.__call__`."""
        at_once = self.backend.records_at_once or self.microbatch
        return equal_pieces(self.expected_records, most=min(self.microbatch, at_once))

    @property
    def private_microbatch(self) -> int:
        """Private records whose gradients are held at a time: some pieces."""
        return self.piece * (equal_pieces(self.expected_records, most=self.microbatch) // self.piece)

    def put(self, gradient: Tensor) -> None:
        """Make a flat gradient the `.grad` of the parameters."""
        pieces = self.groups.unflatten(gradient)
        for name, parameter in self.module.named_parameters():
            if name in pieces:
                parameter.grad = pieces[name].to(parameter)

    def log_nonprivate(self, batch: Any) -> None:
        """Pass on what training_step logs as nonprivate/<name>, from one more forward pass."""
        if isinstance(batch, EmptyBatch):
            return
        with torch.no_grad(), recorded_logs(self.module) as recorder, state_unchanged(self.module):
            self.loss(batch)
        for name, value, settings in recorder.entries:
            self.module.log(f"nonprivate/{name}", value, **settings)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the flat gradients."""
        wide = {torch.promote_types(p.dtype, torch.float32) for p in self.module.parameters() if p.requires_grad}
        return torch.float64 if torch.float64 in wide else torch.float32

    @contextmanager
    def reproducible(self, step: int) -> Iterator[None]:
        """With a seed: random numbers inside depend on seed and step, and leave the global state as it was."""
        if self.seed is None:
            yield
            return
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed((self.seed * 1_000_003 + step) % 2**63)
            yield


@contextmanager
def train_mode(module: LightningModule) -> Iterator[None]:
    """The modes the module trains in; Lightning switches to them only when training starts."""
    modes = [(part, part.training) for part in module.modules()]
    if not module.training:
        module.train()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
