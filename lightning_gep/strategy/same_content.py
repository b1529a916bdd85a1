"""Whether records have the same content, whatever structure holds it and whatever label stands beside it."""

import hashlib
import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from lightning_gep.gradients.batches import values_of

AS_VARIED, AS_LARGE = 0.9, 0.5
"""Share of the most varied value, and of the largest, from which on a value tells records apart."""

CHARACTERS = 4
"""Of a text that count as one element, as a number does: a name or an id beside an input is smaller than the input."""


class Part(NamedTuple):
    """A value of a record: where it is, its number of elements, and its digest."""

    place: int
    size: int
    digest: bytes


class Content(NamedTuple):
    """What a record holds, bit for bit: the same numbers in another type are other content."""

    input: bytes | None
    """Of the first entry of a tuple or list, or else the largest values; None if they cannot be serialised."""
    parts: tuple[Part, ...]
    """The values with several elements, masks apart. In a record of single numbers, all of them but one, for each that
    may be the label."""

    @property
    def digests(self) -> set[bytes]:
        """All of them."""
        return {part.digest for part in self.parts} | ({self.input} if self.input is not None else set())


def content_of(record: Any) -> Content:
    """The digests of a record."""
    try:
        return _content(record)
    except Exception:  # anything may be in a data set; what cannot be taken apart is compared as a whole
        return Content(_digest(record), ())


def telling_digests(contents: Iterable[Content]) -> set[bytes | None]:
    """The digests that tell these records from others: whoever has one of them has the content of one of these.

    Labels, ids, masks and positions are alike in many records, so not every value counts. Those do that are about as
    varied as the most varied one, and not much smaller than the largest of these; and the input, if it is as varied.
    None is among them if some input cannot be compared.
    """
    values: dict[int, set[bytes]] = defaultdict(set)
    sizes: dict[int, int] = defaultdict(int)
    inputs: set[bytes | None] = set()
    for content in contents:
        inputs.add(content.input)
        for part in content.parts:
            values[part.place].add(part.digest)
            sizes[part.place] += part.size
    most = AS_VARIED * max(map(len, values.values()), default=0)
    varied = [place for place, digests in values.items() if len(digests) >= most]
    largest = max((sizes[place] for place in varied), default=0)
    told = (values[place] for place in varied if sizes[place] >= AS_LARGE * largest)
    return (inputs if len(inputs) >= most else inputs & {None}).union(*told)


def _content(record: Any) -> Content:
    values = values_of(record)
    large = {place: value for place, value in enumerate(values) if _size(value) > 1}
    if len(large) > 1:
        large = {place: value for place, value in large.items() if not _is_mask(value)} or large
    several = large or {place: values[:place] + values[place + 1 :] for place in range(len(values)) if len(values) > 1}
    parts = tuple(Part(place, _size(value), found) for place, value in several.items() if (found := _digest(value)))
    if isinstance(record, tuple | list) and record and (_size(record[0]) > 1 or not large):
        known = parts and large.get(parts[0].place) is record[0]
        return Content(parts[0].digest if known else _digest(record[0]), parts)
    most = max((part.size for part in parts), default=0)
    largest = [part.digest for part in parts if part.size >= AS_LARGE * most]
    return Content(largest[0] if len(largest) == 1 else _digest(largest or record), parts)


def _digest(value: Any) -> bytes | None:
    try:
        return hashlib.blake2b(_serialised(value), digest_size=16).digest()
    except Exception:  # what cannot be serialised cannot be compared
        return None


def _serialised(value: Any) -> bytes:
    """The value as bytes that are the same in every process: a pickled tensor holds the address of its storage."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        return _framed(str((plain.dtype, *plain.shape)).encode(), plain.flatten().view(torch.uint8).numpy().tobytes())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _framed(f"{value.dtype.str}{value.shape}".encode(), value.tobytes())
    if isinstance(value, Mapping):
        return _framed(*(_serialised(part) for key in sorted(value, key=str) for part in (str(key), value[key])))
    if isinstance(value, list | tuple):
        return _framed(*(_serialised(part) for part in value))
    return pickle.dumps(value, protocol=4)


def _framed(*parts: bytes) -> bytes:
    """The parts one after another, each with its length, so that no two lists give the same."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _size(value: Any) -> int:
    """Number of elements, or of words; of an object without any, such as an image of Pillow, of bytes."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, np.ndarray | np.generic):
        return value.size
    if isinstance(value, str | bytes):
        return len(value) // CHARACTERS
    if isinstance(value, list | tuple | Mapping):
        return len(value)
    if value is None or isinstance(value, int | float | complex):
        return 1
    try:
        return len(_serialised(value))
    except Exception:
        return 1


def _is_mask(value: Any) -> bool:
    """Whether at most two values occur in it, as in a mask: these are alike in many records."""
    if isinstance(value, torch.Tensor | np.ndarray):
        flat = value.reshape(-1)
        # The first ones alone are quicker, and mostly enough.
        return len(set(flat[:32].tolist())) <= 2 and len(set(flat.tolist())) <= 2
    return isinstance(value, list | tuple) and len(set(value)) <= 2  # tokens that are in no tensor yet
