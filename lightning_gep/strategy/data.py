"""Training batches: drawn by Poisson sampling, and closed to hooks."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch.utils.data import DataLoader, Dataset

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.mixing import PADDED, lengths_of
from lightning_gep.gradients.randomness import renew_random_states
from lightning_gep.gradients.withheld import withheld
from lightning_gep.privacy.sampling import PoissonSampler
from lightning_gep.strategy.persons import PerPerson, Persons

END = object()
RECORDS_LOOKED_AT = 64
CLOSED = (
    "Training hooks and callbacks, such as on_train_batch_start and on_train_batch_end, cannot read private records: "
    "whatever they change in a batch or keep of it would mix records or be released without noise. Process each record "
    "on its own in the dataset, in on_after_batch_transfer or in training_step."
)


OTHER_LENGTHS = (
    "The training records have different lengths, and the collate function pads them to the longest of the batch, so "
    f"one would change the gradients of others. {PADDED}"
)


class EmptyBatch:
    """The batch of a step that drew no record: a real step of the mechanism, which releases noise alone."""

    def __repr__(self) -> str:
        return "EmptyBatch()"


class PrivateBatch:
    """A batch that only the strategy opens, for training_step. Others cannot even ask how many records it has."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def open(self) -> Any:
        """The batch as Lightning would have passed it on."""
        return self._records

    def __getitem__(self, _: object) -> NoReturn:  # also called by unpacking and loops
        raise ConfigurationError(CLOSED)

    def __len__(self) -> NoReturn:
        raise ConfigurationError(CLOSED)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: {CLOSED}")  # what hasattr and copies expect

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "PrivateBatch(closed)"


def closed_batch(batch: Any, move: Callable[[Any], Any], *, reveal: bool, repeatable: bool) -> PrivateBatch:
    """The batch, after `move` has transferred it; errors of the user's hooks do not show values of records.

    Unless `repeatable`, what other hooks draw later tells nothing about the random numbers of transfer hooks.
    """

    def moved() -> Any:
        if isinstance(batch, EmptyBatch):
            return batch
        return batch.each(move).nested() if isinstance(batch, Persons) else move(batch)

    closed = PrivateBatch(withheld(moved, "on_after_batch_transfer", reveal=reveal))
    if not repeatable:
        renew_random_states()
    return closed


class PoissonLoader(DataLoader[Any]):
    """The user's loader with the batches of a `PoissonSampler`.

    The dataset and the collate function are never called with an empty list. Each iteration starts at step
    `first_step()`, so no draw depends on how many batches were prefetched or where a run was resumed.

    Guarantee: unless `repeatable`, the random numbers that dataset and collate function draw from torch, NumPy and
    Python are new for every batch, in this process and in workers, whatever was seeded. Their errors are reported
    without the values of records, unless `reveal_errors`. With `lengths` every record has these, or reading it fails.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        sampler: PoissonSampler,
        first_step: Callable[[], int],
        *,
        repeatable: bool,
        reveal_errors: bool = False,
        lengths: list[Any] | None = None,
    ) -> None:
        options = loader_options(loader)
        options["collate_fn"] = _CollateUnlessEmpty(loader.collate_fn, lengths, isinstance(loader.dataset, PerPerson))
        options["generator"] = loader.generator if repeatable else None
        records = Records(loader.dataset, reveal_errors=True, renew=not repeatable)  # they are withheld in `_read`
        super().__init__(records, batch_sampler=sampler, **options)
        self._poisson, self._repeatable, self._reveal_errors = sampler, repeatable, reveal_errors
        self._first_step = first_step

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._poisson.first_step = self._first_step()
        return self._read(super().__iter__())

    def _read(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            batch = withheld(lambda: next(batches, END), "Reading a batch", reveal=self._reveal_errors)
            if batch is END:
                return
            if not self._repeatable:
                renew_random_states()  # for transfer hooks, which run in this process; workers renew their own
            yield batch


class Records(Dataset[Any]):
    """Training records as they are read for checks and for training: many at a time where the dataset can.

    Errors are reported without the values of records, unless `reveal_errors`. With `renew` everything random is new
    for every batch. The dataset is never asked for an empty list.
    """

    def __init__(self, dataset: Any, *, reveal_errors: bool, renew: bool = False) -> None:
        self.dataset, self.reveal_errors, self.renew = dataset, reveal_errors, renew

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return withheld(lambda: self.dataset[index], "Reading a record", reveal=self.reveal_errors)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if self.renew:
            renew_random_states()
        return withheld(lambda: read(self.dataset, indices), "Reading a record", reveal=self.reveal_errors)


def read(dataset: Any, indices: list[int]) -> list[Any]:
    """The records at these indices, in one call where the dataset can and there are any."""
    several = getattr(dataset, "__getitems__", None)
    return several(indices) if several and indices else [dataset[index] for index in indices]


class _CollateUnlessEmpty:
    def __init__(self, collate: Callable[[list[Any]], Any], lengths: list[Any] | None, per_person: bool) -> None:
        self.collate, self.lengths, self.per_person = collate, lengths, per_person

    def __call__(self, records: list[Any]) -> Any:
        if not records:
            return EmptyBatch()
        return Persons([self._collated(own) for own in records]) if self.per_person else self._collated(records)

    def _collated(self, records: list[Any]) -> Any:
        if self.lengths is not None and any(lengths_of(record) != self.lengths for record in records):
            raise ConfigurationError(OTHER_LENGTHS)
        return self.collate(records)


def common_lengths(dataset: Any) -> list[Any]:
    """The lengths that all training records must have for a collate function that pads; looks at the first few."""
    lengths = [lengths_of(dataset[i]) for i in range(min(len(dataset), RECORDS_LOOKED_AT))]
    if any(other != lengths[0] for other in lengths):
        raise ConfigurationError(OTHER_LENGTHS)
    return lengths[0]


def loader_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """The arguments of a loader that do not decide which records it reads."""
    workers = loader.num_workers
    return {
        "num_workers": workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context if workers else None,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor if workers else None,
        "persistent_workers": loader.persistent_workers,
    }
