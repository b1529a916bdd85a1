"""Poisson sampling: each record is in the batch of a step with probability q, independently of everything else."""

import hashlib
import os
from collections.abc import Iterator
from typing import NoReturn

import numpy as np

from lightning_gep.errors import ConfigurationError


class Secret:
    """32 bytes that determine which records are drawn. Anyone who knows them knows each batch: no amplification.

    Drawn from operating system entropy (`Secret()`), or given, to share one among the ranks of a run. It is hidden from
    every representation and cannot be pickled or copied, so it cannot end up in a checkpoint, log or config.
    """

    SIZE = 32

    def __init__(self, value: bytes | None = None) -> None:
        self._value = os.urandom(self.SIZE) if value is None else value
        if len(self._value) != self.SIZE:
            raise ConfigurationError(f"A sampling secret has {self.SIZE} bytes, not {len(self._value)}. Use Secret().")

    def reveal(self) -> bytes:
        """The bytes, to hand to the other ranks of the same run and to nothing else."""
        return self._value

    def key(self, *context: object) -> int:
        """A 128-bit number that reveals nothing about the secret and differs between contexts."""
        message = "/".join(str(part) for part in context).encode()
        return int.from_bytes(hashlib.blake2b(message, key=self._value, digest_size=16).digest(), "little")

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A sampling secret must not be saved or sent anywhere: every process start draws a new one.")


def seeded_secret(seed: int) -> Secret:
    """Reproducible draws for tests: not a secret, so a run that uses it is not private."""
    return Secret(hashlib.blake2b(str(seed).encode(), person=b"not private", digest_size=Secret.SIZE).digest())


class PoissonSampler:
    """Draws the batch of any step: `draw(step)` depends only on the secret and the step.

    Guarantees: each of the N records is included with probability q = n̄/N, independently, and a batch may be empty (an
    empty list). Nothing is consumed, so prefetching workers, a resume or a second iteration cannot shift the draws.
    Different steps, and processes with different secrets, have unrelated draws.

    Iterating yields this rank's share of the batches of `steps_per_epoch` steps, starting at `first_step`. The shares
    of all ranks make up one draw. Each record's rank is drawn independently: adding or removing a record moves no
    other record to another rank, where it would meet different random numbers. The order within a batch is uniformly
    random: in distribution, adding a record changes the position of at most one other record (append it, then swap it
    with a random one), which bounds what rounding that depends on the position can do.
    """

    def __init__(
        self,
        num_records: int,
        expected_batch_size: int,
        *,
        secret: Secret,
        steps_per_epoch: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.num_records, self.expected_batch_size = num_records, expected_batch_size
        self.steps_per_epoch, self.first_step = steps_per_epoch, 0
        self.rank, self.world_size = rank, world_size
        self._secret = secret

    @property
    def sample_rate(self) -> float:
        """q = n̄/N."""
        return self.expected_batch_size / self.num_records

    def draw(self, step: int) -> list[int]:
        """The records of `step`, over all ranks, in random order."""
        return self._between(step, 0.0, self.sample_rate)

    def share(self, step: int) -> list[int]:
        """The records of `step` that belong to this rank, in random order."""
        # Each rank owns an equal part of [0, q); a record is drawn if its uniform number falls into that interval.
        edges = np.linspace(0.0, self.sample_rate, self.world_size + 1)
        return self._between(step, edges[self.rank], edges[self.rank + 1])

    def _between(self, step: int, low: float, high: float) -> list[int]:
        # Philox is counter-based: its 128-bit key makes the streams of two steps unrelated.
        generator = np.random.Generator(np.random.Philox(key=self._secret.key("poisson", step)))
        numbers = generator.random(self.num_records)
        found = np.flatnonzero((low <= numbers) & (numbers < high))
        order: list[int] = found[np.argsort(numbers[found])].tolist()
        return order

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first_step, self.first_step + self.steps_per_epoch):
            yield self.share(step)
