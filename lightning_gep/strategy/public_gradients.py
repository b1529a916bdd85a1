"""The gradients of public records, from which basis and thresholds are computed."""

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
    """Sweeps over the gradients of public records, which are treated like training batches and leave no trace.

    Records are held only where they are seen again, or where a seed must give the same ones whatever random numbers the
    gradients use in between. A microbatch has at most `num_anchors` of them, however many a sweep has: filling a basis
    takes no more memory than refreshing it.
    """

    def __init__(
        self,
        gradients: StepGradients,
        stream: PublicStream | None,
        like_a_training_batch: Callable[[Any], Any],
        *,
        num_anchors: int,
        sweeps: int = 1,
    ) -> None:
        self._gradients, self._stream, self._sweeps = gradients, stream, sweeps
        self._like_a_training_batch = like_a_training_batch
        self._microbatch = min(gradients.largest_microbatch, num_anchors)

    def __call__(self, count: int, step: int) -> Anchors:
        """Sweeps over `count` records: the same ones at each where iterations need that; with a seed, set by `step`."""
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
                yield from self._gradients.sweep(
                    part for batch in batches for part in microbatches(batch, self._microbatch)
                )

        return sweep

    def thresholds(self, k: int | None) -> Thresholds:
        """Both thresholds, and k if it is not given."""
        anchors = max(ANCHORS_FOR_THRESHOLDS, k or 0)
        held_out = torch.cat(list(self(HELD_OUT_ANCHORS, step=-1)()))
        sizes = self._gradients.groups.sizes
        return choose_thresholds(self(anchors, step=-2), held_out, sizes, k=k, num_anchors=anchors)
