"""The user's train DataLoader with its batches drawn by Poisson sampling instead."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from lightning_gep.gradients.fresh_randomness import renew_random_states
from lightning_gep.gradients.withheld import withheld
from lightning_gep.privacy.sampling import PoissonSampler

END = object()


class EmptyBatch:
    """The batch of a step that drew no record: a real step of the mechanism, with noise and nothing else."""

    def __repr__(self) -> str:
        return "EmptyBatch()"


class PoissonLoader(DataLoader[Any]):
    """The same data set, workers and collate function, with the batches of a `PoissonSampler`.

    Neither the data set nor the collate function is ever asked for an empty list. Each iteration starts at the step
    `first_step()` says, so that no draw depends on how many batches were prefetched, or on where a run was resumed.

    Guarantee: unless `repeatable`, the random numbers that data set and collate function draw from torch, NumPy and
    Python are new for every batch, in this process and in workers, whatever was seeded. What they raise is told without
    the values of records, unless `reveal_errors`.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        sampler: PoissonSampler,
        first_step: Callable[[], int],
        *,
        repeatable: bool,
        reveal_errors: bool = False,
    ) -> None:
        workers = loader.num_workers
        super().__init__(
            _Records(loader.dataset, repeatable),
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=_CollateUnlessEmpty(loader.collate_fn),
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context if workers else None,
            generator=loader.generator if repeatable else None,
            prefetch_factor=loader.prefetch_factor if workers else None,
            persistent_workers=loader.persistent_workers,
        )
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
                # For what happens to it in this process: workers have other random numbers.
                renew_random_states()
            yield batch


class _Records(Dataset[Any]):
    """Passes on requests for several records at once, but not for none."""

    def __init__(self, dataset: Dataset[Any], repeatable: bool) -> None:
        self.dataset, self.repeatable = dataset, repeatable

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if not self.repeatable:
            renew_random_states()
        several = getattr(self.dataset, "__getitems__", None)
        return several(indices) if indices and several else [self.dataset[index] for index in indices]


class _CollateUnlessEmpty:
    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, records: list[Any]) -> Any:
        return self.collate(records) if records else EmptyBatch()
