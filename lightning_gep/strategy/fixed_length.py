"""Padding to a fixed length, for collate functions that pad to the longest record of a batch."""

from collections.abc import Callable
from typing import Any

from lightning_gep.arguments import positive_integer
from lightning_gep.gradients.batches import joined, replace_values, take, values_of


class FixedLength:
    """A collate function that pads every record to the same length, the way another one pads to the longest.

    Each record is collated with a companion of the full length, so the other function pads it by its own rules: on its
    own side, with its own values for tokens, masks and labels. The sequences of a record are its longest values; those
    above `length` are cut.

    Args:
        collate_fn: A collate function that pads, such as one of Hugging Face.
        length: The length of all sequences.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from lightning_gep import FixedLength
        >>> loader = DataLoader(data, collate_fn=FixedLength(collate, 128))  # doctest: +SKIP

    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any], length: int) -> None:
        self.collate_fn = collate_fn
        self.length = positive_integer("length", length, "It is the number of elements of every sequence, e.g. 128.")

    def __call__(self, records: list[Any]) -> Any:
        """The batch of these records."""
        pairs = [[_at_most(record, self.length), _exactly(record, self.length)] for record in records]
        return joined([take(self.collate_fn(pair), slice(0, 1)) for pair in pairs])


def _at_most(record: Any, length: int) -> Any:
    return _with_sequences(record, lambda value: value[:length])


def _exactly(record: Any, length: int) -> Any:
    def repeated(value: Any) -> Any:
        positions = [i % len(value) for i in range(length)]
        return value[positions] if hasattr(value, "shape") else type(value)(value[i] for i in positions)

    return _with_sequences(record, repeated)


def _with_sequences(record: Any, change: Callable[[Any], Any]) -> Any:
    """The record with its longest values changed."""
    values = values_of(record)
    lengths = [_length(value) for value in values]
    longest = max(lengths)
    kept = zip(values, lengths, strict=True)
    return replace_values(record, [change(v) if n == longest and n else v for v, n in kept])


def _length(value: Any) -> int:
    has_several = isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0
    return len(value) if has_several else 0
