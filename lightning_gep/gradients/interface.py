"""What every way of computing per-sample gradients has in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.host_states import HostStates

LossFunction: TypeAlias = Callable[[Any], Tensor]
"""A batch → the scalar loss of the user's training step on it, a mean over the records."""


class GradientError(RuntimeError):
    """A module or a batch whose per-sample gradients cannot be computed rightly in the way that was tried."""


class SharedDrawError(GradientError):
    """Records of a chunk would share a random number, and one record more would move others to another chunk."""


class Backend(ABC):
    """A way of computing per-sample gradients, bound to a module and the loss of its training step.

    A microbatch of b records → their gradients (b × p), at least in float32, columns as in `groups.flatten`. Row i is
    the gradient of the loss on record i alone; it is zero where the loss does not depend on a parameter. An empty batch
    gives a tensor of shape (0, p), and the user's code is not called.

    Guarantee: parameters, their `.grad`, and the module's hooks and modes are left as they were. A call that changes
    one of the module's buffers or parameters raises GradientError: the change would be released without noise.
    """

    name: str
    """ "functional", "hooks" or "loop"."""
    together = True
    """Whether records are differentiated several at a time."""

    def __init__(self, module: nn.Module, loss_function: LossFunction, groups: ParameterGroups) -> None:
        self.module = module
        self.loss_function = loss_function
        self.groups = groups
        self.reason = f"{self.name}: not checked"
        """Why this one was chosen, for the user."""
        self.records_at_once: int | None = None
        """How many records are differentiated together, None for a whole microbatch: their activations take memory."""

    def __call__(
        self,
        batch: Any,
        pieces_of: int | None = None,
        begin_with: HostStates | None = None,
        put_back: Callable[[], object] = lambda: None,
    ) -> Tensor:
        """The gradients of the records of one microbatch, a row each.

        With `pieces_of` the loss is called on just so many records at a time, the last ones filled up with copies:
        products of matrices round differently in other sizes, so without it the gradient of a record would depend a
        little, and near a tie of two logits a lot, on how many others there are. `put_back` is called after each piece,
        also after one that fails: none must meet what the loss kept of another.

        With `begin_with`, the states at the beginning of a step, no random number is shared by some records of the step
        and not by all: each record has its own, or all have the same. Raises SharedDrawError where that cannot be had.
        """
        size = batch_size(batch)
        if size == 0:
            return self._no_rows()
        before = _versions(self.module)
        at_once = (pieces_of or self.records_at_once or size) if self.together else 1

        def piece(part: Any, count: int, out: Tensor | None = None) -> Tensor:
            try:
                return self.piece(part, count, begin_with, out)
            finally:
                put_back()

        rows = self._in_pieces(piece, batch, size, at_once, fill=pieces_of is not None and self.together)
        changed = [name for name, version in _versions(self.module).items() if before.get(name) != version]
        if changed:
            raise GradientError(
                f"training_step changed the buffers or parameters {', '.join(changed)}. They are released without "
                "noise: remove what changes them."
            )
        return rows

    def _in_pieces(self, piece: Callable[..., Tensor], batch: Any, size: int, at_once: int, *, fill: bool) -> Tensor:
        if size == at_once or (size < at_once and not fill):
            return piece(batch, size)
        rows = self._no_rows().new_empty(size, self.groups.num_parameters)
        for start, out in zip(range(0, size, at_once), rows.split(at_once), strict=True):
            missing = at_once - len(out)
            if fill and missing:
                filled = take(batch, [*range(start, size), *[start] * missing])
                out.copy_(piece(filled, at_once)[: len(out)])
            else:
                piece(take(batch, slice(start, start + at_once)), len(out), out=out)
        return rows

    def piece(self, batch: Any, size: int, begin_with: HostStates | None, out: Tensor | None = None) -> Tensor:
        """The same as `rows`, with the promise about `begin_with`."""
        return self.rows(batch, size, out)

    @abstractmethod
    def rows(self, batch: Any, size: int, out: Tensor | None = None) -> Tensor:
        """The gradients of a batch of `size` > 0 records (size × p), put into `out` if that is given."""

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters in the order of the columns."""
        parameters = dict(self.module.named_parameters())
        return {name: parameters[name] for name in self.groups.shapes}

    def _no_rows(self) -> Tensor:
        parameters = list(self.parameters().values())
        dtype = reduce(torch.promote_types, (p.dtype for p in parameters))
        wide = torch.promote_types(dtype, torch.float32)
        return torch.zeros(0, self.groups.num_parameters, dtype=wide, device=parameters[0].device)


def scalar(loss: Any) -> Tensor:
    """The loss as a tensor without dimensions, if it is one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{type(loss).__name__}"
        raise GradientError(f"The loss of training_step is {what}. Return one number: the mean over the records.")
    return loss.reshape(())


def _versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Identity and write count of every parameter and buffer: comparing them costs nothing, comparing values would.

    Writing through `.data` is not counted; values are compared once a step.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: (id(tensor), tensor._version) for name, tensor in tensors}
