"""What every way of computing per-sample gradients has in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, padded, take
from lightning_gep.gradients.randomness import HostStates

if TYPE_CHECKING:
    from lightning_gep.gradients.isolation import PublicTrial

LossFunction: TypeAlias = Callable[[Any], Tensor]
"""A batch → the scalar loss of the user's training step on it, a mean over the records."""


class GradientError(ConfigurationError):
    """A module or batch whose per-sample gradients this backend cannot compute correctly."""


class Backend(ABC):
    """A way of computing per-sample gradients, bound to a module and the loss of its training step.

    A microbatch of b records → their gradients (b × p), in float32 or wider, columns as in `groups.flatten`. Row i is
    the gradient of the loss on record i alone, zero where the loss does not depend on a parameter. For an empty batch
    the user's code is not called.

    Guarantee: parameters, their `.grad`, and the module's hooks and modes are left as they were. What training_step
    itself writes to the module is undone by `put_back` only.
    """

    name: str
    """ "functional", "ghost", "hooks" or "loop"."""
    together = True
    """Whether several records are differentiated in one call."""
    forms_rows = True
    """Whether the gradients of the records are held, not only what tells their norms and sums."""

    def __init__(self, module: nn.Module, loss_function: LossFunction, groups: ParameterGroups) -> None:
        self.module = module
        self.loss_function = loss_function
        self.groups = groups
        self.reason = f"{self.name}: not checked"
        """Why this backend was chosen, for the user."""
        self.largest_chunk: int | None = None
        """The most records whose activations fit in memory together; None for no limit."""

    def __call__(
        self,
        batch: Any,
        chunk_size: int | None = None,
        begin_with: HostStates | None = None,
        put_back: Callable[[], object] = lambda: None,
    ) -> Tensor:
        """The gradients of the records of one microbatch, one row each.

        Args:
            batch: The records of the microbatch.
            chunk_size: Differentiate exactly this many records per call, the last chunk padded with copies. Matrix
                products round differently in different sizes, so without it a record's gradient would depend slightly,
                and near a tie of two logits a lot, on how many other records there are.
            begin_with: Random states at the beginning of the step. With them, no random number is shared by some
                records of the step and not by others: each record has its own, or all share the same.
            put_back: Called after every chunk, also after one that fails, so that no chunk sees what training_step
                kept of another.

        Raises:
            GradientError: If the gradients cannot be computed, or records of a chunk would share a random number.

        """
        size = batch_size(batch)
        together = (chunk_size or self.largest_chunk or max(1, size)) if self.together else 1
        filled = -(-size // together) * together if self.together and chunk_size else size
        rows = self._empty(filled)
        for start in range(0, size, together):
            which = slice(start, start + together)
            try:
                self.differentiate(padded(take(batch, which), len(rows[which])), rows[which], begin_with)
            finally:
                put_back()
        return rows[:size]

    def differentiate(self, chunk: Any, out: Tensor, begin_with: HostStates | None) -> None:
        """`rows` of one chunk. Records of a chunk share the numbers of Python and NumPy: all chunks draw the same."""
        if self.together and begin_with is not None:
            begin_with.put_back()
        self.rows(chunk, out)

    @abstractmethod
    def rows(self, batch: Any, out: Tensor) -> None:
        """Write the gradients of the records to `out`, a row each; there is one at least."""

    @classmethod
    def fault(cls, trial: "PublicTrial") -> str | None:
        """What is wrong with this backend on a module, in words that follow its name; None if nothing was found."""
        return None

    @classmethod
    def later_fault(cls, trial: "PublicTrial") -> str | None:
        """The part of `fault` that can begin during training."""
        return None

    @property
    def held_per_record(self) -> int:
        """Numbers that the gradient of a record takes."""
        return self.groups.num_parameters

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters in the order of the columns."""
        parameters = dict(self.module.named_parameters())
        return {name: parameters[name] for name in self.groups.shapes}

    def _empty(self, size: int) -> Tensor:
        parameters = list(self.parameters().values())
        dtype = reduce(torch.promote_types, (p.dtype for p in parameters), torch.float32)
        return torch.empty(size, self.groups.num_parameters, dtype=dtype, device=parameters[0].device)


def scalar(loss: Any) -> Tensor:
    """The loss as a tensor without dimensions, if it is one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{type(loss).__name__}"
        raise GradientError(f"The loss of training_step is {what}. Return one number: the mean over the records.")
    return loss.reshape(())
