"""Per-sample gradients of a LightningModule's training step."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import Precision
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torchmetrics import Metric

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend, microbatches
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.checks import check_still_apart, shares_draws
from lightning_gep.gradients.fresh_randomness import renew_random_states
from lightning_gep.gradients.host_states import HostStates, held_generators
from lightning_gep.gradients.interface import SharedDrawError
from lightning_gep.gradients.loop import LoopGradients
from lightning_gep.gradients.randomness import random_state_kept, seeded
from lightning_gep.gradients.reference import SEED
from lightning_gep.gradients.state import (
    buffers_copied,
    changed_alike,
    noted_traces,
    parameters_kept,
    state_unchanged,
)
from lightning_gep.gradients.withheld import withheld
from lightning_gep.strategy.logs import recorded_logs
from lightning_gep.strategy.poisson_loader import EmptyBatch
from lightning_gep.strategy.traces import leaves_traces, no_trace, snapshot

OTHER_BATCHES = (1, 2, 3)
"""A training step may treat every other batch differently."""
PUBLIC_RECORDS_KEPT = 8
"""From which comes, once a step, what training_step leaves behind."""
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
        reveal_errors: bool = False,
    ) -> None:
        self.module, self.precision, self.groups, self.reveal_errors = module, precision, groups, reveal_errors
        self.microbatch, self.expected_records, self.seed = microbatch, expected_records, seed
        # float64 sums and norms are needed, and Apple's accelerator has none.
        device = next(module.parameters()).device
        self.device = torch.device("cpu") if device.type == "mps" else device
        self.public_batch: Any = None
        """A few public records, from which comes what training_step keeps; None if there are none."""
        self.keeps = False
        """Whether training_step leaves anything behind, as far as public records have shown."""
        self.kept: list[str] = []
        """Attributes of the module in which it does."""
        self.counters: tuple[str, ...] = ()
        """Buffers that follow from weights and steps alone, like a count of steps or the vectors of spectral norm."""
        self.arguments: tuple[Any, ...] = ()
        """What Lightning passes to training_step after the batch."""

    def choose_backend(self, public_batch: Any, how: str, *, may_be_kept: bool = True) -> list[str]:
        """Bind the way gradients are computed, checked on a public batch; gives the names that training_step logs.

        `may_be_kept` says that the batch holds nothing of private records, so that training_step may keep it.
        """
        gets_index = is_param_in_hook_signature(self.module.training_step, "batch_idx", min_args=2)
        self.arguments = (0,) if gets_index else ()
        self.public_batch = take(public_batch, slice(0, PUBLIC_RECORDS_KEPT)) if may_be_kept else None
        with no_trace(self.module), recorded_logs(self.module) as recorder, train_mode(self.module):
            self.counters = self._find_counters()
            self.backend = choose_backend(self.module, self.loss, self.groups, public_batch, how)
        self._look_for_traces()
        for index in OTHER_BATCHES if gets_index else ():
            self.arguments = (index,)
            self.check_again(public_batch, by_chance=False)
        return recorder.names

    def check_again(self, public_batch: Any, *, by_chance: bool = True) -> None:
        """Raises ConfigurationError if training_step has begun to mix records since the backend was chosen.

        If it has begun to draw random numbers that records would share, gradients are computed in a loop from here on.
        """
        with no_trace(self.module), recorded_logs(self.module), train_mode(self.module):
            if shares_draws(self.backend, public_batch):
                self._go_on_by_loop("training_step draws random numbers for a batch as a whole")
            check_still_apart(self.backend, public_batch, by_chance=by_chance)
        self._look_for_traces()

    def _find_counters(self) -> tuple[str, ...]:
        if self.public_batch is None:
            return ()
        half = batch_size(self.public_batch) // 2
        # Of different sizes: how many records are drawn is private, too.
        pieces = [take(self.public_batch, part) for part in (slice(0, half), slice(half, None), slice(None))]
        with random_state_kept(), parameters_kept(self.module):
            try:
                return changed_alike(self.module, [partial(seeded(self._call, SEED), piece) for piece in pieces])
            except Exception:  # the checks that follow meet it too, and have words for it
                return ()

    def _look_for_traces(self) -> None:
        if self.public_batch is None:
            return
        names: list[str] = []

        def call() -> None:
            with noted_traces(self.module) as noted:
                self._call(self.public_batch)
            names.extend(name for name in noted if name.rpartition(".")[2] not in ("_buffers", "_parameters"))

        with recorded_logs(self.module), train_mode(self.module), random_state_kept(), parameters_kept(self.module):
            self.keeps = leaves_traces(self.module, call) or self.keeps
        self.kept = [name for name in names if not name.rpartition(".")[2].startswith("_")] or names or self.kept

    def loss(self, batch: Any) -> Tensor:
        """The loss of training_step on a batch, under the trainer's precision; `counters` stay as they are."""
        with buffers_copied(self.module, self.counters):
            return self._call(batch)

    def _call(self, batch: Any) -> Tensor:
        with self.precision.train_step_context():
            output = self.module.training_step(batch, *self.arguments)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise ConfigurationError("training_step returned no loss. Return the loss, or a dict with the key 'loss'.")
        return loss

    def of_private(self, batch: Any) -> Iterator[Tensor]:
        """Gradients of the records of a batch in microbatches, as `sweep` gives them; none for an empty batch."""
        if isinstance(batch, EmptyBatch):
            return
        held = held_generators(self.module)
        if self.seed is None:
            renew_random_states(held)
        call = partial(withheld, what="training_step", reveal=self.reveal_errors)
        yield from self.sweep(microbatches(batch, self.private_microbatch), self.piece, HostStates(held), call)

    def sweep(
        self,
        batches: Iterable[Any],
        pieces_of: int | None = None,
        begin_with: HostStates | None = None,
        call: Callable[[Callable[[], Tensor]], Tensor] = lambda rows: rows(),
    ) -> Iterator[Tensor]:
        """Gradients of one microbatch after the other; what training_step logs is dropped.

        Guarantee: when a microbatch is handed on, nothing that training_step keeps is left where `traces.snapshot`
        looks. Raises ConfigurationError after the last one if training_step has changed a parameter, a buffer or other
        saved state: release nothing before they are exhausted.
        """
        with state_unchanged(self.module):
            with recorded_logs(self.module):  # what is put back must not log either
                before = snapshot(self.module)
            for batch in batches:
                yield call(partial(self._rows, batch, pieces_of, begin_with, before.put_back))

    def _rows(
        self, microbatch: Any, pieces_of: int | None, begin_with: HostStates | None, put_back: Callable[[], object]
    ) -> Tensor:
        """No random number is shared by some records of a step and not by all: see `Backend.__call__`."""
        with recorded_logs(self.module):
            try:
                return self.backend(microbatch, pieces_of, begin_with, put_back).to(self.device)
            except SharedDrawError as error:
                self._go_on_by_loop(str(error))
                return self.backend(microbatch, pieces_of, begin_with, put_back).to(self.device)

    def _go_on_by_loop(self, why: str) -> None:
        rank_zero_warn(
            f"{why}, which the records of a chunk would share. From here on gradients are computed record by record, "
            "which is slow: draw a number for every record, from torch."
        )
        by_loop = LoopGradients(self.module, self.loss, self.groups)
        by_loop.reason, by_loop.records_at_once = f"loop: {why}", self.backend.records_at_once
        self.backend = by_loop

    def keep(self) -> None:
        """Let training_step leave behind what it does, from public records: of private ones nothing stays.

        So counters count steps, hooks find their lists filled, and whatever they save or decide is public.
        """
        if self.keeps:
            with recorded_logs(self.module), torch.enable_grad():
                self._call(self.public_batch)

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
        """Pass on what training_step logs as nonprivate/<name>, from another pass; metrics by their value on it."""
        if isinstance(batch, EmptyBatch):
            return
        with (
            torch.no_grad(),
            recorded_logs(self.module) as recorder,
            state_unchanged(self.module),
            no_trace(self.module),
        ):
            for metric in (part for part in self.module.modules() if isinstance(part, Metric)):
                metric.reset()
            self.loss(batch)
            values = [value.compute() if isinstance(value, Metric) else value for _, value, _ in recorder.entries]
        for (name, _, settings), value in zip(recorder.entries, values, strict=True):
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
