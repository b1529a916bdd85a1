"""Per-sample gradients by Opacus' hooks: one ordinary forward and backward pass, with layers watched on the way."""

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lightning_gep.gradients.host_states import HostStates
from lightning_gep.gradients.interface import Backend, GradientError, SharedDrawError, scalar
from lightning_gep.gradients.plain import gradients_or_none
from lightning_gep.gradients.randomness import DrawSizes

ON_PARAMETERS = ("grad_sample", "_forward_counter", "_current_grad_sample")
ON_LAYERS = ("activations", "max_batch_len", "ft_compute_sample_grad", "_is_full_backward_hook")
HANDLES = "autograd_grad_sample_hooks"
MISSING = object()
MEANS_OVER_TARGETS = (nn.functional.cross_entropy, nn.functional.nll_loss)
IGNORED = -100
"""Of a target that these ignore, if nothing else is said."""


class HookedGradients(Backend):
    """The loss is called once on the whole batch, so metrics, `.item()` and strings work as in ordinary training.

    Only what passes through layers is seen: a term of the loss outside them is dropped without a word, which is why
    this backend must not be used on a module it was not checked on. A parameter that the loss depends on but no layer
    accounts for raises GradientError. So does a random number that is drawn for several records at once.
    """

    name = "hooks"

    def piece(self, batch: Any, size: int, begin_with: HostStates | None, out: Tensor | None = None) -> Tensor:
        """Whether numbers from Python and NumPy are drawn for each record cannot be seen, so there must be none."""
        before = None if begin_with is None else begin_with.now()
        rows = self.rows(batch, size, out)
        if before is not None and before.differ():
            raise SharedDrawError("training_step draws random numbers from Python or NumPy")
        return rows

    def rows(self, batch: Any, size: int, out: Tensor | None = None) -> Tensor:
        """The gradients of a batch of `size` > 0 records (size × p)."""
        parameters = self.parameters()
        with _hooked(self.module), torch.enable_grad():
            with _NoIgnoredTargets(), DrawSizes() as draws:
                loss = scalar(self.loss_function(batch))
            if not draws.for_each_of(size):
                raise SharedDrawError("training_step draws random numbers for a batch instead of each of its records")
            plain = gradients_or_none(loss, parameters)
            rows = {name: _rows_of(name, p, plain[name], size) for name, p in parameters.items()}
        return self.groups.flatten(rows, out)


class _NoIgnoredTargets(TorchFunctionMode):
    """Raises GradientError where a loss takes the mean over less than all records: hooks take it for the mean of all.

    One target more that is ignored would make the gradients of all other records longer.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in MEANS_OVER_TARGETS:
            called = inspect.signature(function).bind(*args, **kwargs).arguments
            target, ignored = called["target"], called.get("ignore_index", IGNORED)
            is_mean = called.get("reduction", "mean") == "mean"
            if is_mean and not target.is_floating_point() and bool((target == ignored).any()):
                raise GradientError(
                    f"{function.__name__} ignores some targets (ignore_index={ignored}) and takes the mean over the "
                    "others, so a record would change the gradients of all. Use gradients='loop', or remove the "
                    "records without a target from the training data"
                )
        return function(*args, **kwargs)


def _rows_of(name: str, parameter: nn.Parameter, plain: Tensor | None, size: int) -> Tensor:
    if plain is None:
        return parameter.new_zeros(size, *parameter.shape)
    rows = getattr(parameter, "grad_sample", None)
    if not isinstance(rows, Tensor):
        raise GradientError(f"the parameter {name} is used outside the forward pass of a layer that Opacus knows")
    if len(rows) != size:
        raise GradientError(f"the layer of {name} saw {len(rows)} rows for a batch of {size} records")
    return rows


class _LayerHooks(GradSampleModule):  # type: ignore[misc]
    """Opacus' hooks on every layer that has parameters, in training mode or not."""

    def iterate_submodules(self, module: nn.Module) -> Iterator[nn.Module]:
        # Opacus would copy a module that has both parameters and children, here perhaps the whole LightningModule, to
        # recompute it; such a module's own parameters are left out, and `_rows_of` reports them if they are used.
        for layer in module.modules():
            own = any(p.requires_grad for p in layer.parameters(recurse=False))
            if own and (type(layer) in self.GRAD_SAMPLERS or _is_simple(layer)):
                yield layer

    def capture_activations_hook(self, module: nn.Module, forward_input: list[Tensor], output: Tensor) -> None:
        # Opacus ignores layers in evaluation mode, whose parameters may be trainable all the same.
        training, module.training = module.training, True
        super().capture_activations_hook(module, forward_input, output)
        module.training = training


def _is_simple(layer: nn.Module) -> bool:
    """Whether a layer that Opacus has no formula for can be recomputed by it from its input alone."""
    return not list(layer.children()) and not isinstance(layer, nn.RNNBase)


@contextmanager
def _hooked(module: nn.Module) -> Iterator[None]:
    """Hooks on the module's layers, taken off again with all that they left behind."""
    with _attributes_kept(module), _out_of_place(module), warnings.catch_warnings():
        # True of every first layer, since data needs no gradient, and harmless: parameters are what is asked for.
        warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed")
        try:
            _LayerHooks(module, batch_first=True, loss_reduction="mean", strict=False)
            yield
        finally:
            # Not Opacus' remove_hooks: there is nothing to call it on when adding them failed half way.
            for handle in vars(module).pop(HANDLES, []):
                handle.remove()


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """Attributes that Opacus sets on parameters and layers, also after a failure, are put back as they were."""
    owners = [(p, ON_PARAMETERS) for p in module.parameters()] + [(layer, ON_LAYERS) for layer in module.modules()]
    found = [(owner, {name: vars(owner).get(name, MISSING) for name in names}) for owner, names in owners]
    try:
        yield
    finally:
        for owner, values in found:
            _put_back(owner, values)


def _put_back(owner: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is not MISSING:
            vars(owner)[name] = value
        else:
            vars(owner).pop(name, None)


@contextmanager
def _out_of_place(module: nn.Module) -> Iterator[None]:
    """Layers that work in place (activations, dropout) do not while hooks look at the outputs; the values are equal."""
    layers: list[Any] = [layer for layer in module.modules() if getattr(layer, "inplace", False) is True]
    for layer in layers:
        layer.inplace = False
    try:
        yield
    finally:
        for layer in layers:
            layer.inplace = True
