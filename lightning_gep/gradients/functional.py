"""Per-sample gradients by vectorising the gradient of the whole training step (torch.func).

Ordinary training steps can be vectorised because recurrent layers use kernels that can, and because metrics and values
asked for by `.item()` or `float()` are stubbed: what training_step logs is dropped anyway.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from lightning_gep.gradients.batches import record_leaves, replace_leaves
from lightning_gep.gradients.interface import Backend, GradientError, LossFunction, scalar
from lightning_gep.gradients.isolation import PublicTrial, disagreement
from lightning_gep.gradients.snapshot import Snapshot

KERNELS = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
NORMS = {"group_norm", "layer_norm", "batch_norm", "instance_norm"}
VALUES = {"item", "__float__"}
STAND_IN = 1.0
"""What `.item()` and `float()` return for a tensor with a value for every record; log, exp and division take it."""
OTHER_STAND_INS = (0.0, float("inf"), float("-inf"), 1e4)
"""Tried on public records: if one of them changes the gradients, training_step does more with the value than log it."""


FILLS = ("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "uniform_")
"""Methods that fill a tensor with random numbers, whatever was in it."""


class Vectorising(TorchFunctionMode):
    """Inside, recurrent layers can be vectorised, and `.item()` and `float()` of a record's tensor give a stand-in."""

    def __init__(self, stand_in: float = STAND_IN) -> None:
        super().__init__()
        self.stand_in = stand_in
        self.stood_in = 0
        """How often a value was asked for."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name in KERNELS and not _is_packed(args):
            inputs, state, *rest = args
            # The fused kernels cannot be vectorised; vmap would run them record by record.
            with _without(torch.backends.mkldnn), _without(torch.backends.cudnn):
                return function(inputs, _for_each_record(state, inputs), *rest, **kwargs)
        if name == "scaled_dot_product_attention" and torch.is_autocast_enabled(args[0].device.type):
            return _attention_in_one_dtype(function, args, kwargs)
        if name in NORMS and torch.is_autocast_enabled(args[0].device.type):
            # Their kernels on CPUs cannot be vectorised with weights of another dtype; on GPUs autocast does the same.
            return function(args[0].to(torch.promote_types(args[0].dtype, torch.float32)), *args[1:], **kwargs)
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if name == "requires_grad_" and "functorch" in str(error):
                return args[0]  # Hugging Face asks for the gradient of inputs, which reaches no parameter
            if name in FILLS and "inplace randomness" in str(error) and args[0].is_floating_point():
                return _filled_for_each_record(function, args, kwargs)
            if name not in VALUES or "vmap" not in str(error):
                raise
            self.stood_in += 1
            return self.stand_in


class FunctionalGradients(Backend):
    """vmap(grad(loss)): the loss is called once and sees what looks like a batch of one record.

    The module's parameters are swapped for the duration of the call, wherever in the module tree they are used, so
    terms of the loss outside the layers count. Torch's random numbers differ from record to record. Code that takes a
    branch on the value of a tensor cannot be vectorised and raises.
    """

    name = "functional"

    def __init__(self, *arguments: Any, randomness: str = "different", vectorising: Vectorising | None = None) -> None:
        super().__init__(*arguments)
        self._randomness, self._vectorising = randomness, vectorising or Vectorising()
        self._step = _Step(self.module, self.loss_function)

    def rows(self, batch: Any, out: Tensor) -> None:
        """The gradients of all records by one vectorised call."""
        leaves = self.leaves_of(batch)
        parameters = {name: p.detach() for name, p in self.parameters().items()}

        def gradient_of_one(values: dict[str, Tensor], record: list[Tensor]) -> dict[str, Tensor]:
            one = replace_leaves(batch, record)
            (gradient,) = differentiated(vjp(lambda own: self.loss_with(own, one), values))
            return gradient

        gradients_of_all = vmap(gradient_of_one, in_dims=(None, 0), randomness=self._randomness)
        with self.vectorisable():
            self.groups.flatten(gradients_of_all(parameters, leaves), out)

    def loss_with(self, values: dict[str, Tensor], batch: Any) -> Tensor:
        """The loss with these values of parameters, wherever in the module tree they are used."""
        # Torch's own tie_weights swaps twice where one layer has two names, and leaves the second value behind.
        places = ((place, values.get(name)) for place, name in _places(self.module))
        swapped = {f"module.{place}": value for place, value in places if value is not None}
        return scalar(functional_call(self._step, swapped, (batch,), tie_weights=False))

    @contextmanager
    def vectorisable(self) -> Iterator[None]:
        """Inside, the training step can be vectorised."""
        # The fused kernels of attention cannot be vectorised; vmap would run them record by record.
        with _metrics_stubbed(self.module), _masks_always_built(), sdpa_kernel(SDPBackend.MATH), self._vectorising:
            yield

    @staticmethod
    def leaves_of(batch: Any) -> list[Tensor]:
        """The tensors of a batch, each record with a batch dimension of its own."""
        leaves = record_leaves(batch)
        other = next((leaf for leaf in leaves if not isinstance(leaf, Tensor)), None)
        if other is not None:
            raise GradientError(f"the batch holds records that are not tensors (a {type(other).__name__})")
        return [leaf.unsqueeze(1) for leaf in leaves]

    @classmethod
    def fault(cls, trial: PublicTrial) -> str | None:
        """With `randomness="same"` and a seed every record draws what it draws alone: random losses can be compared."""
        usual, as_in_training = Vectorising(), Vectorising()
        rows = trial.rows(cls, randomness="same", vectorising=usual)
        fault = disagreement(rows, trial.rows(), trial.groups, trial.tolerance)
        if fault is not None:
            return fault
        if not bool(torch.isfinite(trial.rows(cls, vectorising=as_in_training)).all()):
            return "cannot be used: a tensor is filled with random numbers in place, and read under its old name"
        if as_in_training.stood_in > usual.stood_in:
            return "cannot be used: training_step asks for the value of a random number (.item() or float())"
        return cls.later_fault(trial)

    @classmethod
    def later_fault(cls, trial: PublicTrial) -> str | None:
        """Whether training_step does more than log values: no risk to privacy, but it would train another model."""
        usual = Vectorising()
        expected = trial.rows(cls, randomness="same", vectorising=usual)
        for stand_in in OTHER_STAND_INS if usual.stood_in else ():
            try:
                found = trial.rows(cls, randomness="same", vectorising=Vectorising(stand_in))
            except Exception:  # code that cannot take this value, such as log(0), tells nothing
                continue
            if disagreement(found, expected, trial.groups, trial.tolerance):
                return "cannot be used: training_step decides something by the value of a tensor (.item() or float())"
        return None


def differentiated(loss_and_backward: Any) -> Any:
    """The gradients that belong to the first two results of `vjp`.

    `torch.func.grad` could be differentiated again, and to that end keeps all that the backward pass computes.
    """
    loss, backward, *_ = loss_and_backward
    return backward(torch.ones_like(loss), retain_graph=False, create_graph=False)


class _Step(nn.Module):
    """The loss function as a module, so that functional_call can swap the parameters of `module` under it."""

    def __init__(self, module: nn.Module, loss_function: LossFunction) -> None:
        super().__init__()
        self.module = module
        self.loss_function = loss_function

    def forward(self, batch: Any) -> Tensor:
        return self.loss_function(batch)


def _places(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Every place in the module tree that holds a parameter, once, with the name of that parameter."""
    names = {id(p): name for name, p in module.named_parameters()}
    for path, part in module.named_modules():
        for own, p in part.named_parameters(prefix=path, recurse=False, remove_duplicate=False):
            yield own, names[id(p)]


@contextmanager
def _metrics_stubbed(module: nn.Module) -> Iterator[None]:
    """Inside, metrics of torchmetrics in the module tree compute nothing and return zeros.

    Recurrent layers are put back, too: they remember the weights of the last call, and those swapped in must not stay.
    """
    torchmetrics: Any = sys.modules.get("torchmetrics")
    kinds = () if torchmetrics is None else (torchmetrics.Metric, torchmetrics.MetricCollection)
    changed = [part for part in module.modules() if isinstance(part, (nn.RNNBase, *kinds))]
    before = Snapshot(("", vars(part)) for part in changed)
    for part in changed:
        if isinstance(part, kinds):
            vars(part).update(dict.fromkeys(("forward", "update", "compute"), _stub(part, torchmetrics)))
    try:
        yield
    finally:
        before.put_back()


def _stub(metric: Any, torchmetrics: Any) -> Any:
    if isinstance(metric, torchmetrics.MetricCollection):
        return lambda *_, **__: {name: torch.zeros(()) for name in metric}
    return lambda *_, **__: torch.zeros(())


@contextmanager
def _masks_always_built() -> Iterator[None]:
    """Inside, Hugging Face models build their attention masks without looking at them, as they do when traced.

    Otherwise they leave out a mask that masks nothing, by a branch on its values that cannot be vectorised. Attention
    is the same either way. Versions of transformers without this switch take the branch, and get the loop.
    """
    modules = [sys.modules.get(f"transformers.{name}") for name in ("masking_utils", "modeling_attn_mask_utils")]
    before = [(vars(module), vars(module)["is_tracing"]) for module in modules if hasattr(module, "is_tracing")]
    for names, _ in before:
        names["is_tracing"] = lambda *_: True
    try:
        yield
    finally:
        for names, is_tracing in before:
            names["is_tracing"] = is_tracing


def _attention_in_one_dtype(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Attention in autocast's dtype: left to autocast, the backward pass of its MATH kernel mixes two dtypes."""
    device = args[0].device.type
    dtype = torch.get_autocast_dtype(device)

    def narrow(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    with torch.autocast(device, enabled=False):
        return function(*map(narrow, args), **{name: narrow(value) for name, value in kwargs.items()})


def _filled_for_each_record(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What `torch.empty(…).bernoulli_(p)` and the like return, with numbers for each record, as stochastic depth draws.

    The tensor itself has no room for them. Code that reads it, and not what is returned, gets NaN, which shows.
    """
    args[0].fill_(torch.nan)
    return function(torch.rand_like(args[0]), *args[1:], **kwargs)


@contextmanager
def _without(library: Any) -> Iterator[None]:
    """Not the library's own `flags`, which sets its precision as well."""
    before = library.enabled
    library.enabled = False
    try:
        yield
    finally:
        library.enabled = before


def _is_packed(args: tuple[Any, ...]) -> bool:
    """Whether these are the arguments for packed sequences, of which the second holds batch sizes."""
    return isinstance(args[1], Tensor) and not args[1].is_floating_point()


def _for_each_record(state: Any, inputs: Tensor) -> Any:
    """The state with the hidden batch dimension of the inputs: it is written in place, so zeros need it too."""
    if isinstance(state, tuple | list):
        return tuple(_for_each_record(part, inputs) for part in state)
    return state + torch.zeros_like(inputs).sum().to(state.dtype)
