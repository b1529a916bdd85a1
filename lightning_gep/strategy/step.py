"""Per-sample gradients of a LightningModule's training step."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import Precision
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torchmetrics import Metric

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import choose_backend, microbatches
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.choice import check_still_apart
from lightning_gep.gradients.factors import FactoredGradients
from lightning_gep.gradients.ghost import GhostGradients
from lightning_gep.gradients.isolation import SEED
from lightning_gep.gradients.memory import microbatch_for
from lightning_gep.gradients.randomness import (
    HostStates,
    held_generators,
    random_state_kept,
    renew_random_states,
    seeded,
)
from lightning_gep.gradients.state import buffers_copied, changed_alike, in_mode, state_unchanged
from lightning_gep.gradients.withheld import withheld
from lightning_gep.strategy.data import EmptyBatch
from lightning_gep.strategy.logs import recorded_logs
from lightning_gep.strategy.persons import made_of_public, of_all_persons
from lightning_gep.strategy.traces import no_trace, snapshot

OTHER_BATCHES = (1, 2, 3)
"""A training step may treat every other batch differently."""
PUBLIC_RECORDS_KEPT = 8
"""Public records replayed after each step, so that whatever training_step stores is public."""
CHUNKS_PER_BATCH, SMALLEST_CHUNK = 8, 16
"""Trade-off: larger chunks waste more padding, smaller ones run slower."""


def equal_chunks(expected_records: int, most: int) -> int:
    """The size of all chunks of a batch, whatever is drawn into it; the last chunk is padded."""
    # One standard deviation above the expected size, or every other batch would need one more chunk.
    wanted = math.ceil((expected_records + expected_records**0.5) / CHUNKS_PER_BATCH)
    return min(most, max(SMALLEST_CHUNK, wanted))


class StepGradients:
    """Differentiates `training_step` record by record, a microbatch at a time; nothing it logs gets out.

    Args:
        module: The module that trains.
        precision: The trainer's precision plugin.
        groups: The trainable parameters.
        microbatch: The most records whose gradients are held at a time; None if what fits.
        rows_needed: Whether the mechanism needs the gradients themselves, not only their norms and sums.
        turned: Whether it needs them in the coordinates of a public spectrum.
        expected_records: The expected number of private records, or persons, of a step on this process.
        per_person: With a number, private batches are those of persons with so many records each: one row per person.
        transfer: What happens to a batch before training_step gets it; by default nothing.
        seed: With a seed everything random inside a step (dropout, public records and their labels) depends on seed
            and step; without one it is new at every step, whatever was seeded.
        reveal_errors: Pass on messages of errors on private records.

    """

    def __init__(
        self,
        module: LightningModule,
        precision: Precision,
        groups: ParameterGroups,
        *,
        microbatch: int | None,
        expected_records: int,
        seed: int | None,
        rows_needed: bool = True,
        turned: bool = False,
        reveal_errors: bool = False,
        per_person: int | None = None,
        transfer: Callable[[Any], Any] = lambda batch: batch,
    ) -> None:
        self.transfer = transfer
        self.module, self.precision, self.groups, self.reveal_errors = module, precision, groups, reveal_errors
        self.expected_records, self.seed, self.per_person = expected_records, seed, per_person
        # float64 sums and norms are needed, and Apple's accelerator has none: rows go to the CPU.
        device = next(module.parameters()).device
        self.device = torch.device("cpu") if device.type == "mps" else device
        self.rows_needed, self.turned = rows_needed or self.device != device, turned
        self.asked_microbatch = microbatch
        self.largest_microbatch = microbatch_for(groups.num_parameters, device) if microbatch is None else microbatch
        self.public_batch: Any = None
        """A few public records from which comes what training_step keeps; None if there are none."""
        self.keeps = False
        """Whether training_step leaves anything behind, as far as public records have shown."""
        self.kept: list[str] = []
        """Attributes of the module in which it does."""
        self.counters: tuple[str, ...] = ()
        """Buffers that follow from weights and steps alone, like a count of steps or the vectors of spectral norm."""
        self.arguments: tuple[Any, ...] = ()
        """What Lightning passes to training_step after the batch."""

    def choose_backend(self, public_batch: Any, how: str, *, may_be_kept: bool = True) -> list[str]:
        """Choose how gradients are computed, checked on a public batch; returns the names that training_step logs.

        `may_be_kept` says that the batch holds nothing of private records, so that training_step may keep it.
        """
        tried = self._like_private(self.transfer(public_batch))
        gets_index = is_param_in_hook_signature(self.module.training_step, "batch_idx", min_args=2)
        self.arguments = (0,) if gets_index else ()
        self.public_batch = take(tried, slice(0, PUBLIC_RECORDS_KEPT)) if may_be_kept else None
        with no_trace(self.module), recorded_logs(self.module) as recorder, train_mode(self.module):
            self.counters = self._find_counters()
            self.backend = choose_backend(
                self.module,
                self.loss,
                self.groups,
                tried,
                how,
                rows_needed=self.rows_needed,
                turned=self.turned,
            )
        self._look_for_traces()
        for index in OTHER_BATCHES if gets_index else ():
            self.arguments = (index,)
            self.check_again(public_batch)
        return recorder.names

    def check_again(self, public_batch: Any) -> None:
        """Raises ConfigurationError if records have begun to reach each other since the backend was chosen."""
        tried = self._like_private(self.transfer(public_batch))
        with no_trace(self.module), recorded_logs(self.module), train_mode(self.module):
            check_still_apart(self.backend, tried)
        self._look_for_traces()

    def _like_private(self, public_batch: Any) -> Any:
        return public_batch if self.per_person is None else made_of_public(public_batch, self.per_person)

    def _find_counters(self) -> tuple[str, ...]:
        if self.public_batch is None:
            return ()
        half = batch_size(self.public_batch) // 2
        # Of different sizes: how many records are drawn is private, too.
        batches = [take(self.public_batch, part) for part in (slice(0, half), slice(half, None), slice(None))]
        with random_state_kept():
            try:
                return changed_alike(self.module, [partial(seeded(self._call, SEED), batch) for batch in batches])
            except Exception:  # the checks that follow meet it too, and report it in words
                return ()

    def _look_for_traces(self) -> None:
        if self.public_batch is None:
            return
        with recorded_logs(self.module), train_mode(self.module), random_state_kept(), no_trace(self.module) as written:
            self._call(self.public_batch)
        self.keeps = bool(written) or self.keeps
        buffers = dict(self.module.named_buffers())
        names = [name for name in written if name not in buffers]
        self.kept = [name for name in names if not name.rpartition(".")[2].startswith("_")] or names or self.kept

    def loss(self, batch: Any) -> Tensor:
        """The loss of training_step on a batch, under the trainer's precision; `counters` stay as they are."""
        with buffers_copied(self.module, self.counters):
            return self._call(batch)

    def _call(self, batch: Any) -> Tensor:
        if self.per_person is not None:
            batch = of_all_persons(batch)
        with self.precision.train_step_context():
            output = self.module.training_step(batch, *self.arguments)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise ConfigurationError("training_step returned no loss. Return the loss, or a dict with the key 'loss'.")
        return loss

    def of_private(self, batch: Any) -> Iterator[Tensor | FactoredGradients]:
        """Gradients of the records of a batch in microbatches, as `sweep` gives them; none for an empty batch."""
        if isinstance(batch, EmptyBatch):
            return
        held = held_generators(self.module)
        if self.seed is None:
            renew_random_states(held)
        call = partial(withheld, what="training_step", reveal=self.reveal_errors)
        compute = self.backend.factored if isinstance(self.backend, GhostGradients) else self._rows
        yield from self._sweep(microbatches(batch, self.microbatch), compute, self.chunk, HostStates(held), call)
        # Later numbers may be published, such as the inputs of a generative model, and tell the earlier ones.
        if self.seed is None:
            renew_random_states(held)

    def sweep(self, batches: Iterable[Any]) -> Iterator[Tensor]:
        """Gradients of public records, one microbatch after the other, as in `_sweep`."""
        yield from self._sweep(map(self._like_private, batches), self._rows)

    def _sweep(
        self,
        batches: Iterable[Any],
        compute: Callable[..., Any],
        chunk_size: int | None = None,
        begin_with: HostStates | None = None,
        call: Callable[[Callable[[], Any]], Any] = lambda rows: rows(),
    ) -> Iterator[Any]:
        """Gradients of one microbatch after the other; what training_step logs is dropped.

        Guarantee: when a microbatch is handed on, nothing that training_step keeps is left where `traces.snapshot`
        looks. `chunk_size` and `begin_with` are those of `Backend.__call__`.

        Raises:
            ConfigurationError: After the last microbatch, if training_step has changed a parameter, a buffer or other
                saved state. Release nothing before the iterator is exhausted.

        """
        with state_unchanged(self.module):
            with recorded_logs(self.module):  # what is put back must not log either
                before = snapshot(self.module)
            for batch in batches:
                with recorded_logs(self.module):
                    gradients = call(partial(compute, batch, chunk_size, begin_with, before.put_back))
                yield gradients

    def _rows(self, *arguments: Any) -> Tensor:
        return self.backend(*arguments).to(self.device)

    def keep(self) -> None:
        """Let training_step leave behind what it does, from public records: of private ones nothing stays.

        So counters count steps, hooks find their lists filled, and whatever they save or decide is public.
        """
        if self.keeps:
            with recorded_logs(self.module), torch.enable_grad():
                self._call(self.public_batch)

    @property
    def chunk(self) -> int:
        """Private records that are differentiated together, always the same number: see `Backend.__call__`."""
        fits = self.backend.largest_chunk or self.largest_microbatch
        if not self.backend.forms_rows:
            return equal_chunks(self.expected_records, min(fits, self.asked_microbatch or fits))
        return equal_chunks(self.expected_records, min(fits, self.largest_microbatch))

    @property
    def microbatch(self) -> int:
        """Private records whose gradients are held at a time: a few whole chunks."""
        if isinstance(self.backend, GhostGradients):
            return self.chunk
        return self.chunk * (equal_chunks(self.expected_records, self.largest_microbatch) // self.chunk)

    def put(self, gradient: Tensor) -> None:
        """Make a flat gradient the `.grad` of the parameters."""
        gradients = self.groups.unflatten(gradient)
        for name, parameter in self.module.named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter)

    def log_nonprivate(self, batch: Any) -> None:
        """Pass on what training_step logs as nonprivate/<name>, from another pass; metrics by their value on it."""
        if isinstance(batch, EmptyBatch):
            return
        with (
            torch.no_grad(),
            recorded_logs(self.module) as recorder,
            no_trace(self.module),
            state_unchanged(self.module),
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


def train_mode(module: LightningModule) -> AbstractContextManager[None]:
    """The modes the module trains in; Lightning switches to them only when training starts."""
    return nullcontext() if module.training else in_mode(module, training=True)
