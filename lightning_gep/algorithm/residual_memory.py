"""A running mean of the noisy residuals that the steps of GEP release."""

from typing import Any

import torch
from torch import Tensor


class ResidualMemory:
    """Replaces each step's noisy residual by an exponential running mean of those released so far.

    Most of GEP's noise is in the residual, which changes little from step to step: a mean over steps has less of the
    noise and follows the residual with a delay. The embedding is left as it is.

    Privacy: it costs none. The running mean is a function of noisy residuals alone, each of which its step has released
    and been charged for, so it is post-processing, wherever it is kept and however often it is used.

    Args:
        memory: β from 0 to below 1, the share of the mean that a step keeps. 0 keeps nothing.
        parameters: The names of the parameters in the order of the flat residual.

    """

    def __init__(self, memory: float = 0.0, parameters: tuple[str, ...] = ()) -> None:
        self.memory, self.parameters = memory, parameters
        self._sum: Tensor | None = None
        self._weight = 0.0

    def __call__(self, released: Tensor | None) -> Tensor | None:
        """The mean after this noisy residual, with weights that sum to 1; without memory the residual itself."""
        if self.memory == 0.0 or released is None:
            return released
        self._sum = (1 - self.memory) * released + (0.0 if self._sum is None else self.memory * self._sum)
        self._weight = 1 - self.memory + self.memory * self._weight
        return self._sum / self._weight

    def state_dict(self) -> dict[str, Any] | None:
        """What a checkpoint keeps; all of it has been released. None if there is nothing to keep."""
        if self._sum is None:
            return None
        return {"sum": self._sum, "weight": self._weight, "parameters": list(self.parameters)}

    def load_state_dict(self, state: dict[str, Any] | None, device: torch.device) -> None:
        """Continue from a checkpoint, on this device; a mean over other parameters begins anew."""
        if state is not None and self.memory > 0 and tuple(state["parameters"]) == self.parameters:
            self._sum, self._weight = state["sum"].to(device), state["weight"]
