"""The gradients of public records, from which basis and thresholds are computed."""

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_gep.algorithm.exchange import Exchange
from lightning_gep.algorithm.linalg import row_norms
from lightning_gep.algorithm.subspace import Anchors, Subspace, finite_rows
from lightning_gep.algorithm.thresholds import Thresholds, choose_clip_norm, choose_thresholds
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients import microbatches
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.privacy.release import Release
from lightning_gep.strategy.logs import SECONDS_UNNOTICED, progress_bar
from lightning_gep.strategy.public_data import PublicStream
from lightning_gep.strategy.step import StepGradients, train_mode
from lightning_gep.strategy.step_cost import clock_of

MOST_ANCHORS, FEWEST_ANCHORS, NUMBERS = 500, 60, 5 * 10**8
"""Public records on which k and thresholds are chosen: as many as have so many numbers in their gradients."""
HELD_OUT = 0.4
"""How many others they are tried on, relative to that."""
CHOOSING, FILLING = "Choosing k and thresholds", "Computing the first basis"
DROWNED = 20.0
"""Noise that is so many times the gradient hides it for hundreds of steps: their sum grows like its square root."""


class PublicGradients:
    """Sweeps over the gradients of public records, which are treated like training batches and leave no trace.

    Records are held only where they are seen again, or where a seed must give the same ones whatever random numbers the
    gradients use in between. A microbatch has at most `num_anchors` of them, however many a sweep has: filling a basis
    takes no more memory than refreshing it.
    """

    def __init__(
        self, gradients: StepGradients, stream: PublicStream | None, *, num_anchors: int, sweeps: int = 1
    ) -> None:
        self._gradients, self._stream, self._sweeps = gradients, stream, sweeps
        self._microbatch = min(gradients.largest_microbatch, num_anchors)
        self._exchange = Exchange()

    def divide(self, exchange: Exchange) -> None:
        """From now on every process takes its share of each microbatch; their streams start anew, in step."""
        self._exchange = exchange
        if self._stream is not None and exchange.world_size > 1:
            self._stream.restart()

    def __call__(self, count: int, step: int, what: str = "") -> Anchors:
        """Sweeps over `count` records: the same ones at each where iterations need that; with a seed, set by `step`.

        With a name, which is for those that take long, they have a progress bar, and say how long it takes.
        """
        held: list[Any] = []
        counts: list[int] = []

        def records() -> Iterable[Any]:
            assert self._stream is not None, "a mechanism with a basis has public data"
            seed = self._gradients.seed
            if self._sweeps == 1 and seed is None:
                return self._stream.batches(count)
            if not held:
                with self._gradients.reproducible(step):
                    if seed is not None:
                        self._stream.restart()
                    held.extend(self._stream.batches(count))
            return held

        def shares() -> Iterator[Any]:
            for batch in map(self._gradients.transfer, records()):
                for part in microbatches(batch, self._microbatch):
                    first, end = self._exchange.share(batch_size(part))
                    counts.append(end - first)
                    # A process without a share differentiates one record all the same, and drops it.
                    yield take(part, slice(first, end) if end > first else slice(0, 1))

        def sweep() -> Iterator[Tensor]:
            with train_mode(self._gradients.module):
                for rows in self._gradients.sweep(shares()):
                    yield rows[: counts.pop()]

        def shown() -> Iterator[Tensor]:
            own, start, done, told = max(1, count // self._exchange.world_size), time.perf_counter(), 0, False
            with progress_bar(what, own) as bar:
                for rows in sweep():
                    seconds = (time.perf_counter() - start) * own / max(1, done + len(rows))
                    if done and not told and seconds > SECONDS_UNNOTICED:  # the first microbatch is slower
                        rank_zero_info(f"{what} on {count} public records, about {seconds:.0f} s.")
                        told = True
                    done += len(rows)
                    bar.update(len(rows))
                    yield rows

        return shown if what else sweep

    def thresholds(self, k: int | None) -> Thresholds:
        """Both thresholds, and k if it is not given."""
        sizes, anchors = self._gradients.groups.sizes, max(self._records, k or 0)
        fit, held_out = self(anchors, -2, CHOOSING), self(round(HELD_OUT * self._records), -1)
        return choose_thresholds(fit, held_out, sizes, k=k, num_anchors=anchors)

    def clip_norm(self, coordinates: Subspace | None) -> float:
        """The threshold of DP-SGD, for gradients or in the coordinates that a subspace gives them."""
        if self._stream is None:
            raise ConfigurationError(
                "clip_norm='auto' is chosen on public data, and there is none. Give aux_dataloader=..., or a number: "
                "1.0, or less for losses with small gradients.",
                setting="clip_norm",
            )
        basis = None if coordinates is None else coordinates.at_step(0, self(self._records, -2, CHOOSING))
        parts = self(round(HELD_OUT * self._records), -1)()
        return choose_clip_norm(torch.cat([row_norms(g if basis is None else basis.coordinates(g)) for g in parts]))

    @property
    def _records(self) -> int:
        return min(MOST_ANCHORS, max(FEWEST_ANCHORS, NUMBERS // self._gradients.groups.num_parameters))

    def one_step(self, batch: Any, clip: float) -> tuple[float, float]:
        """The length of the mean clipped gradient of a public batch, and the seconds that one of its records took."""
        clock, total, count = clock_of(self._gradients.device), torch.zeros(()), 0
        start = clock()
        with train_mode(self._gradients.module):
            for rows in self._gradients.sweep(microbatches(self._gradients.transfer(batch), self._microbatch)):
                factors = (clip / row_norms(rows)).clamp(max=1.0).to(rows)
                total, count = total.to(rows) + finite_rows(rows * factors[:, None]).sum(dim=0), count + len(rows)
        return float(total.norm()) / count, (clock() - start) / count


def warn_of_noise(signal: float, release: Release, sizes: tuple[int, int], expected_batch_size: int) -> None:
    """A warning if the noise of a step, with k and p as `sizes`, is far above its gradient on public records."""
    stds = ((part and part.noise_std) or 0.0 for part in (release.embedding, release.residual))
    noise = math.hypot(*(std * size**0.5 for std, size in zip(stds, sizes, strict=True))) / expected_batch_size
    if noise > DROWNED * signal:
        rank_zero_warn(
            f"On public records the noise of a step is {noise / max(signal, 1e-30):.0f} times as long as its "
            "gradient, so training may get nowhere. Use larger batches, a larger ε, fewer trainable parameters, or "
            "another mechanism."
        )
