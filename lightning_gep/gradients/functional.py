"""Per-sample gradients by vectorising the gradient of the whole training step (torch.func)."""

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.gradients.batches import record_leaves, replace_leaves
from lightning_gep.gradients.interface import Backend, GradientError, LossFunction, scalar
from lightning_gep.gradients.randomness import HostStates
from lightning_gep.gradients.vectorising import Vectorising, metrics_stubbed, recurrent_layers_kept


class FunctionalGradients(Backend):
    """vmap(grad(loss)): the loss is called once and sees what looks like a batch of one record.

    The module's parameters are swapped for the duration of the call, wherever in the module tree they are used, so
    terms of the loss outside the layers count. Torch's random numbers differ from record to record. Metrics and values
    asked for by `.item()` or `float()` are stubbed: what training_step logs is dropped anyway. Code that takes a branch
    on the value of a tensor cannot be vectorised and raises.
    """

    name = "functional"

    def __init__(
        self,
        module: nn.Module,
        loss_function: LossFunction,
        groups: ParameterGroups,
        *,
        randomness: str = "different",
        vectorising: Vectorising | None = None,
    ) -> None:
        super().__init__(module, loss_function, groups)
        self._randomness, self._vectorising = randomness, vectorising or Vectorising()
        self._step = _Step(module, loss_function)

    def chunk(self, batch: Any, size: int, begin_with: HostStates | None, out: Tensor | None = None) -> Tensor:
        """The loss is called once per chunk; each call draws the same numbers from Python and NumPy."""
        if begin_with is not None:
            begin_with.put_back()
        return self.rows(batch, size, out)

    def rows(self, batch: Any, size: int, out: Tensor | None = None) -> Tensor:
        """The gradients of a batch of `size` > 0 records (size × p)."""
        leaves = record_leaves(batch)
        other = next((leaf for leaf in leaves if not isinstance(leaf, Tensor)), None)
        if other is not None:
            raise GradientError(f"the batch holds records that are not tensors (a {type(other).__name__})")
        parameters = {f"module.{name}": p.detach() for name, p in self.parameters().items()}

        def loss_of_one(values: dict[str, Tensor], record: list[Tensor]) -> Tensor:
            return scalar(functional_call(self._step, values, (replace_leaves(batch, record),)))

        gradients_of_all = vmap(grad(loss_of_one), in_dims=(None, 0), randomness=self._randomness)
        with recurrent_layers_kept(self.module), metrics_stubbed(self.module), self._vectorising:
            gradients = gradients_of_all(parameters, [leaf.unsqueeze(1) for leaf in leaves])
        return self.groups.flatten({name.removeprefix("module."): rows for name, rows in gradients.items()}, out)


class _Step(nn.Module):
    """The loss function as a module, so that functional_call can swap the parameters of `module` under it."""

    def __init__(self, module: nn.Module, loss_function: LossFunction) -> None:
        super().__init__()
        self.module = module
        self.loss_function = loss_function

    def forward(self, batch: Any) -> Tensor:
        return self.loss_function(batch)
