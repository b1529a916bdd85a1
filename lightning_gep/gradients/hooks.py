"""Per-sample gradients by Opacus' hooks: one ordinary forward and backward pass, with layers watched on the way.

Only on request (`gradients="hooks"`, the `[hooks]` extra). The loss sees a whole chunk at once, so records can meet in
it. Three things are checked, on public records before training and once per epoch: the gradients are those of the loop,
replacing a record changes no other's, and random numbers are drawn for each record. A training step that mixes records
only for values that no public record has is not found.

Torch has no public way to see what is drawn: `DrawSizes` is a `TorchDispatchMode`, from a module with an underscore in
its name. Without it this file cannot be imported, and hooks are refused.
"""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.interface import Backend, GradientError, scalar
from lightning_gep.gradients.isolation import SEED, PublicTrial, close, disagreement
from lightning_gep.gradients.randomness import HostStates, held_generators, seed_everywhere
from lightning_gep.gradients.snapshot import Snapshot
from lightning_gep.gradients.state import in_mode, unregistered, untouched

MEANS_OVER_TARGETS = (nn.functional.cross_entropy, nn.functional.nll_loss)
IGNORED = -100
"""The target that these ignore by default."""
SEEDS = range(8)
"""For a mixing that depends on random numbers."""
SHARES = "would share random numbers among records, as training_step draws some for a batch as a whole"
MIXES = "would mix records: replacing one changes the gradients of others"


class HookedGradients(Backend):
    """The loss is called once on the whole chunk, so metrics, `.item()` and strings work as in ordinary training.

    Only what passes through layers is seen: a term of the loss outside them is dropped without an error, unless `fault`
    has found it. A parameter that the loss depends on but no layer accounts for raises GradientError. So does a random
    number that is drawn for several records at once.
    """

    name = "hooks"

    def differentiate(self, chunk: Any, out: Tensor, begin_with: HostStates | None) -> None:
        """Whether numbers from Python and NumPy are drawn for each record cannot be seen, so there must be none."""
        super().differentiate(chunk, out, begin_with)
        if begin_with is not None and begin_with.differ():
            raise GradientError(f"hooks {SHARES} (from Python or NumPy). Use gradients='auto'.")

    def rows(self, batch: Any, out: Tensor) -> None:
        """The gradients of all records by one backward pass."""
        parameters, size = self.parameters(), len(out)
        with _hooked(self.module), torch.enable_grad():
            with _NoIgnoredTargets(), DrawSizes() as draws:
                loss = scalar(self.loss_function(batch))
            if any(drawn % size for drawn in draws.sizes):
                raise GradientError(f"hooks {SHARES}. Use gradients='auto'.")
            used: tuple[Tensor | None, ...] = (None,) * len(parameters)
            if loss.requires_grad:
                used = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            named = zip(parameters.items(), used, strict=True)
            rows = {name: _rows_of(name, p, size, is_used=one is not None) for (name, p), one in named}
        self.groups.flatten(rows, out)

    @classmethod
    def fault(cls, trial: PublicTrial) -> str | None:
        """Rows are compared with the loop's in evaluation mode, as a random loss draws other numbers in a batch than
        alone, and their mean with the ordinary gradient in training mode, where a term could exist only there.
        """
        fault = cls.later_fault(trial)
        if fault is not None:
            return fault
        with in_mode(trial.module, training=False):
            if trial.is_random():
                return "cannot be checked, since the loss is random in evaluation mode, too"
            fault = disagreement(trial.rows(cls), trial.rows(), trial.groups, trial.tolerance)
        if fault is None and not close(trial.rows(cls).mean(dim=0), trial.gradient(trial.records), trial.tolerance):
            return "gave gradients that differ from ordinary ones in training mode"
        return fault

    @classmethod
    def later_fault(cls, trial: PublicTrial) -> str | None:
        """The part of `fault` that is about records meeting each other."""
        n = batch_size(trial.records)
        whole, less = (_draws_for_a_record(trial, take(trial.records, slice(0, size)), size) for size in (n, n - 1))
        if whole is None or whole != less:
            return SHARES
        for seed in SEEDS:
            place = seed % n
            others = [i for i in range(n) if i != place]
            replaced = take(trial.records, [(place + 1) % n if i == place else i for i in range(n)])
            before, after = (trial.rows(cls, batch, seed)[others] for batch in (trial.records, replaced))
            if disagreement(after, before, trial.groups, trial.tolerance):
                return MIXES
        return None


def _draws_for_a_record(trial: PublicTrial, batch: Any, size: int) -> list[float] | None:
    """How many numbers torch draws per record, draw by draw; None if there are draws that torch does not show."""
    held = held_generators(trial.module)
    with untouched(trial.module):
        seed_everywhere(SEED, held)
        before = HostStates(held)
        with DrawSizes() as draws:
            trial.user_loss(batch)
        return None if before.differ() or draws.unseen else [drawn / size for drawn in draws.sizes]


class DrawSizes(TorchDispatchMode):
    """Inside, notes how many random numbers torch draws at a time, by whatever name and from whatever generator."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.unseen = False
        """Whether torch's own generator has moved although nothing was noted: a library's operator may draw within."""

    def __enter__(self) -> "DrawSizes":
        self._before = torch.get_rng_state()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.unseen = not self.sizes and not torch.equal(self._before, torch.get_rng_state())

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in operator.tags:
            self.sizes.append((result[0] if isinstance(result, tuple) else result).numel())
        return result


class _NoIgnoredTargets(TorchFunctionMode):
    """Raises GradientError where a loss takes the mean over fewer than all records: hooks take it for the mean of all,
    and one more ignored target would make the gradients of all other records longer.
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
                    "others, so a record would change the gradients of all. Use gradients='auto'."
                )
        return function(*args, **kwargs)


def _rows_of(name: str, parameter: nn.Parameter, size: int, *, is_used: bool) -> Tensor:
    if not is_used:
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
            simple = not list(layer.children()) and not isinstance(layer, nn.RNNBase)
            if own and (type(layer) in self.GRAD_SAMPLERS or simple):
                yield layer

    def capture_activations_hook(self, module: nn.Module, forward_input: list[Tensor], output: Tensor) -> None:
        # Opacus ignores layers in evaluation mode, whose parameters may be trainable all the same.
        training, module.training = module.training, True
        super().capture_activations_hook(module, forward_input, output)
        module.training = training


@contextmanager
def _hooked(module: nn.Module) -> Iterator[None]:
    """Hooks on the module's layers. They and all that they leave behind are gone on leaving, also after a failure."""
    before = Snapshot(unregistered(module))
    try:
        with warnings.catch_warnings():
            # True of every first layer, since data needs no gradient, and harmless: parameters are what is asked for.
            warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients are computed")
            for layer in module.modules():
                if getattr(layer, "inplace", False) is True:  # hooks look at the outputs; the values are equal
                    vars(layer)["inplace"] = False
            _LayerHooks(module, batch_first=True, loss_reduction="mean", strict=False)
            yield
    finally:
        before.put_back()
