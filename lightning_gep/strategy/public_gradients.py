"""The gradients of public records, which basis and thresholds are made of."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from lightning_gep.algorithm.subspace import Anchors
from lightning_gep.algorithm.thresholds import Thresholds, choose_thresholds
from lightning_gep.gradients import microbatches
from lightning_gep.strategy.public_data import PublicStream
from lightning_gep.strategy.step import StepGradients, train_mode

ANCHORS_FOR_THRESHOLDS, HELD_OUT_ANCHORS = 500, 200


class PublicGradients:
    """Sweeps over the gradients of public records, which are treated as a training batch is and leave no trace.

    Records are held only where they are seen again, or where a seed must give the same ones whatever random numbers the
    gradients use in between. `at_once` of them are differentiated at a time at the most, however many a sweep has: no
    more memory is needed to fill a basis than to refresh it.
    """

    def __init__(
        self,
        gradients: StepGradients,
        stream: PublicStream | None,
        like_a_training_batch: Callable[[Any], Any],
        *,
        at_once: int,
        sweeps: int = 1,
    ) -> None:
        self._gradients, self._stream, self._sweeps = gradients, stream, sweeps
        self._like_a_training_batch = like_a_training_batch
        self._size = min(gradients.microbatch, at_once)

    def __call__(self, count: int, step: int) -> Anchors:
        """Sweeps over `count` records, the same ones at each; with a seed they depend on `step`."""
        held: list[Any] = []

        def records() -> Iterable[Any]:
            assert self._stream is not None, "a mechanism with a basis has public data"
            seed = self._gradients.seed
            if self._sweeps == 1 and seed is None:
                return self._stream.batches(count)
            if not held:
                with self._gradients.reproducible(step):
                    held.extend(self._stream.batches(count, restart=seed is not None))
            return held

        def sweep() -> Iterator[Tensor]:
            with train_mode(self._gradients.module):
                batches = map(self._like_a_training_batch, records())
                yield from self._gradients.sweep(part for batch in batches for part in microbatches(batch, self._size))

        return sweep

    def thresholds(self, k: int | None) -> Thresholds:
        """k, if it is not given, and both thresholds."""
        anchors = max(ANCHORS_FOR_THRESHOLDS, k or 0)
        held_out = torch.cat(list(self(HELD_OUT_ANCHORS, step=-1)()))
        sizes = self._gradients.groups.sizes
        return choose_thresholds(self(anchors, step=-2), held_out, sizes, k=k, num_anchors=anchors)
