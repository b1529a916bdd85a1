"""What records hold, bit for bit, so that the same input is found in two datasets whatever its label."""

import hashlib
import math
import pickle
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from lightning_gep.gradients.batches import values_of

MANY_BITS = 40.0
"""Values with fewer bits may agree by chance: 2000 public and a million training records do so twice in 2 ** 30."""
BITS_OF_A_NUMBER, BITS_OF_A_CHARACTER, BITS_OF_A_BYTE = 32, 4, 8
"""At most; one number alone is below MANY_BITS, because a column of a table may have few different ones."""
AS_VARIED, AS_LARGE = 0.9, 0.5
"""A value is an input if it is this varied, relative to the most varied value, and this large."""


ARRAYS = {torch.Tensor, np.ndarray}


class Part(NamedTuple):
    """A value of a record, or all values but one: where it stands, the most bits it can have, and its digest."""

    position: int
    bits: float
    digest: bytes


def parts_of(record: Any) -> list[Part]:
    """The parts by which a record can be recognized: its large values, such as an image, a text or tokens.

    In a record without them, such as a row of a table, all values but one, for each that may be the label. The same
    numbers in another type are another value. A value that cannot be serialised is no part.
    """
    values = list(record) if _is_plain(record) else values_of(record)
    sizes, digests = [*map(_bits, values)], [*map(_digest, values)]
    known = [digest for digest in digests if digest is not None]
    if len(known) < len(values) or len(values) == 1 or max(sizes, default=0.0) >= MANY_BITS:
        parts = zip(range(len(values)), sizes, digests, strict=True)
        return [Part(i, bits, digest) for i, bits, digest in parts if digest is not None and bits >= MANY_BITS]
    without = (b"".join(known[:i] + known[i + 1 :]) for i in range(len(values)))
    return [Part(-1 - i, sum(sizes) - sizes[i], _hash(others)) for i, others in enumerate(without)]


def _is_plain(record: Any) -> bool:
    """Whether it is a tuple of arrays and numbers, as most records are, which then takes half the time."""
    kinds = {*map(type, record)} if type(record) in (tuple, list) else set()
    return bool(kinds & ARRAYS) and kinds <= ARRAYS | {int, float}


def input_of(parts: Sequence[Part]) -> bytes | None:
    """The digest of the largest part, which leaves the label out; None for a record without parts."""
    return max(parts, key=lambda part: part.bits).digest if parts else None


@dataclass(frozen=True)
class Distinctive:
    """What identifies the records of a dataset: another record with one of the digests has the same input."""

    digests: frozenset[bytes]
    repeated: float
    """The share of records that repeat a digest, if inputs have few bits; 0 if they cannot agree by chance."""
    incomparable: bool
    """Whether some record could not be compared."""


def distinctive(records: Iterable[Sequence[Part]]) -> Distinctive:
    """What identifies these records.

    Ids, masks, positions and labels agree in many records. So at every position of a record the values count only if
    they are about as varied as those of the most varied position, and about as large as the largest of these.
    """
    digests, bits = defaultdict[int, set[bytes]](set), defaultdict[int, float](float)
    count, incomparable = 0, False
    for parts in records:
        count += 1
        incomparable |= not parts
        for part in parts:
            digests[part.position].add(part.digest)
            bits[part.position] = max(bits[part.position], part.bits)
    most = max(map(len, digests.values()), default=0)
    varied = [position for position, found in digests.items() if len(found) >= AS_VARIED * most]
    largest = max((bits[position] for position in varied), default=0.0)
    inputs = [digests[position] for position in varied if bits[position] >= AS_LARGE * largest]
    repeated = 0.0 if largest >= MANY_BITS else sum(1 - len(found) / count for found in inputs)
    return Distinctive(frozenset().union(*inputs), repeated, incomparable or not count)


def _bits(value: Any) -> float:
    """The most bits that a value can have; of whole numbers, by the largest."""
    if isinstance(value, str):
        return BITS_OF_A_CHARACTER * len(value)
    if type(value) is int:
        return min(BITS_OF_A_NUMBER, math.log2(1 + abs(value)))
    try:
        numbers = np.abs(np.asarray(_array(value), dtype=np.float64))
    except Exception:  # not numbers
        return BITS_OF_A_BYTE * len(_serialised(value) or b"")
    if not np.array_equal(numbers, np.floor(numbers)):
        return BITS_OF_A_NUMBER * numbers.size
    return min(BITS_OF_A_NUMBER, float(np.log2(1 + numbers.max(initial=0)))) * numbers.size


def _array(value: Any) -> Any:
    """A tensor as an array of NumPy, whose functions take a fraction of the time on single records."""
    if not isinstance(value, torch.Tensor):
        return value
    real = torch.view_as_real(value) if value.is_complex() else value
    return real.detach().to("cpu", torch.float64).numpy()


def _digest(value: Any) -> bytes | None:
    serialised = _serialised(value)
    return None if serialised is None else _hash(serialised)


def _serialised(value: Any) -> bytes | None:
    """Bytes that are the same in every process: a pickled tensor contains the address of its storage."""
    try:
        if isinstance(value, torch.Tensor):
            kind = str((value.dtype, *value.shape)).encode()
            return kind + value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return f"{value.dtype.str}{value.shape}".encode() + value.tobytes()
        return pickle.dumps(value, protocol=4)
    except Exception:  # datasets may hold anything
        return None


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
