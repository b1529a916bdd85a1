"""Stand-ins for public records: random, in the structure and the rough range of the training data."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import record_leaves, replace_leaves, replace_values, values_of
from lightning_gep.gradients.isolation import in_short
from lightning_gep.gradients.mixing import RECORDS_TRIED

LARGEST = 2**53
"""Above it all floating-point numbers are whole."""


def stand_in_records(loader: DataLoader[Any]) -> list[Any]:
    """Records with the structure of the training data, for checks without public data.

    Numbers are random. Of the training data only a few records are read, and of those only the structure, the range of
    whole numbers and the kind of the others (between 0 and 1, positive or any); nothing but the outcome of the checks
    remains of them.
    """
    data: Any = loader.dataset
    records = (data[i % len(data)] for i in range(RECORDS_TRIED))
    return [replace_values(record, list(map(drawn_like, values_of(record)))) for record in records]


def stand_in_batch(loader: DataLoader[Any]) -> Any:
    """A batch of such records, with the structure of a training batch."""
    batch = loader.collate_fn(stand_in_records(loader))
    # Again, for what the collate function makes of texts, such as tokens.
    return replace_leaves(batch, list(map(drawn_like, record_leaves(batch))))


def is_random(batch: Any) -> bool:
    """Whether such a batch holds no value of a training record."""
    return all(_numbers(leaf) is not None for leaf in record_leaves(batch))


@contextmanager
def explained(batch: Any, *, reveal_errors: bool) -> Iterator[None]:
    """Errors of the user's code on a batch of stand-ins say what they come from, and the way out.

    Where it holds values of training records, such as texts, errors are told without theirs.
    """
    told = reveal_errors or is_random(batch)
    try:
        yield
        return
    except ConfigurationError as error:
        if told or error.__cause__ is None:  # by the checks themselves
            raise
        cause: BaseException = error.__cause__
    except Exception as error:
        cause = error
    what = in_short(cause) if told else type(cause).__name__
    raise ConfigurationError(
        f"training_step, or a hook before it, failed with {what}. It was not run on your data: without public data "
        "it is checked on random records in the structure of the training data. If it is right and they are not, "
        "pass a few records that it accepts, public or made by hand: aux_dataloader=DataLoader(...). "
        "mechanism='gp' uses them for checks only.",
        setting="aux_dataloader",
    ) from (cause if told else None)


def drawn_like(value: Any) -> Any:
    """A random value of the same kind; what holds no numbers stays."""
    numbers = _numbers(value)
    if numbers is None:
        return value
    if isinstance(value, list | tuple) and numbers.dtype == torch.int64:
        # Each up to what stands in its place: they may be an id and a label.
        return _as(value, (torch.rand(numbers.shape, dtype=torch.float64) * numbers.clamp(min=0)).ceil().long())
    return _as(value, _draw(numbers))


def _draw(like: Tensor) -> Tensor:
    """Random numbers in the shape and type of a tensor, and of the kind of its numbers."""
    if like.dtype == torch.bool:
        return torch.rand(like.shape) < 0.5
    if like.is_complex():
        return torch.randn_like(like)
    seen = like.double()
    seen = seen[torch.isfinite(seen)]
    if not seen.numel():
        return torch.randn_like(like) if like.is_floating_point() else torch.zeros_like(like)
    if not like.is_floating_point() or (torch.equal(seen, seen.round()) and seen.abs().max() < LARGEST):
        # A label to ignore is a whole number; among other numbers a large one is a value like any.
        top = seen.max() if like.is_floating_point() else _largest(seen)
        smallest, largest = int(seen.min() > 0), min(max(0, int(top)), LARGEST)
        return torch.randint(smallest, max(smallest, largest) + 1, like.shape).to(like.dtype)
    if seen.min() >= 0 and seen.max() <= 1:
        return torch.rand_like(like)
    if seen.min() >= 0:
        return torch.randn_like(like).exp()
    return torch.randn_like(like)


def _largest(seen: Tensor) -> int:
    """The largest whole number; the second largest if the first is far off, like the 255 of labels to ignore."""
    second, first = ([0.0, *seen.unique().tolist()])[-2:]
    return int(first if first <= 2 * second + 1 or len(seen) < 2 else second)


def _numbers(value: Any) -> Tensor | None:
    """A value as a tensor; None if it holds no numbers."""
    if isinstance(value, str | bytes) or value is None:
        return None
    if isinstance(value, Tensor):
        return value.detach() if value.layout == torch.strided and not value.is_quantized else None
    try:
        return torch.as_tensor(np.array(value))  # a copy, which can be written to
    except Exception:  # a type that torch does not have
        return None


def _as(value: Any, drawn: Tensor) -> Any:
    """Drawn numbers in the type of a value."""
    if isinstance(value, Tensor):
        return drawn.to(value.device)
    if isinstance(value, np.ndarray | np.generic):
        return drawn.numpy().astype(value.dtype) if value.ndim else value.dtype.type(drawn.item())
    return type(value)(drawn.tolist())
