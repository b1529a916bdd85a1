"""Clipped sums without per-sample gradients: norms from the inputs and output gradients of each layer.

One vectorised backward pass gives all inputs and output gradients, without the p-sized row of any record; `factors`
makes norms and sums of them. Parameters of other layers, such as biases and norms, keep their rows.

Records are as separate as in `functional`: the loss is vectorised and sees one record at a time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from lightning_gep.algorithm.linalg import row_norms
from lightning_gep.algorithm.spectral import SEPARABLE_ABOVE
from lightning_gep.gradients.batches import batch_size, padded, replace_leaves
from lightning_gep.gradients.factors import ConvolutionFactor, EmbeddingFactor, Factor, FactoredGradients, LinearFactor
from lightning_gep.gradients.functional import FunctionalGradients, differentiated
from lightning_gep.gradients.interface import GradientError
from lightning_gep.gradients.isolation import PublicTrial, close
from lightning_gep.gradients.randomness import HostStates, random_state_kept
from lightning_gep.gradients.state import untouched

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TOLERANCE = 1e-2
"""Norms are upper bounds, a little above the truth."""
Shapes = dict[str, list[torch.Size]]


class GhostGradients(FunctionalGradients):
    """Factors instead of rows for Linear, convolutions and Embeddings; `rows` are those of `functional`."""

    name = "ghost"

    def __init__(self, *arguments: Any, forms_rows: bool = False, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.forms_rows = forms_rows
        self._layers = dict(self._find_layers())
        self._shapes: dict[Any, Shapes] = {}

    @property
    def held_per_record(self) -> int:
        """The rows that are kept, and the gradient of one weight at a time where its norm needs it."""
        if self.forms_rows:
            return super().held_per_record
        own = {f"{name}.weight" for name in self._layers}
        sizes = {name: shape.numel() for name, shape in self.groups.shapes.items()}
        largest = max((size for name, size in sizes.items() if name in own and size <= SEPARABLE_ABOVE), default=0)
        return largest + sum(size for name, size in sizes.items() if name not in own)

    def factored(
        self,
        batch: Any,
        chunk_size: int | None = None,
        begin_with: HostStates | None = None,
        put_back: Callable[[], object] = lambda: None,
    ) -> FactoredGradients:
        """The gradients of one chunk of records; the arguments are those of `Backend.__call__`."""
        size = batch_size(batch)
        for _ in range(2):
            if begin_with is not None:
                begin_with.put_back()
            try:
                return self._factored(padded(batch, chunk_size or size), size)
            except _OtherCallsError:  # training_step has changed, as it may with its step or a random number
                self._shapes.clear()
            finally:
                put_back()
        raise GradientError("the layers are called in another way at every call of training_step")

    def _factored(self, batch: Any, size: int) -> FactoredGradients:
        leaves = self.leaves_of(batch)
        everything = {name: p.detach() for name, p in self.parameters().items()}
        shapes = self._output_shapes(batch, leaves, everything)
        own = {f"{name}.weight" for name in shapes}
        constant = {name: value for name, value in everything.items() if name in own}
        like = next(iter(everything.values()))
        taps = {name: [like.new_zeros(shape) for shape in calls] for name, calls in shapes.items()}

        def loss_of_one(values: dict[str, Tensor], taps: Any, record: list[Tensor]) -> tuple[Tensor, Any]:
            with self._tapped(taps) as inputs:
                loss = self.loss_with({**values, **constant}, replace_leaves(batch, record))
            if any(len(inputs.get(name, ())) != len(calls) for name, calls in taps.items()):
                raise _OtherCallsError
            return loss, inputs

        def gradients_of_one(values: dict[str, Tensor], taps: Any, record: list[Tensor]) -> Any:
            found: Any = vjp(lambda values, taps: loss_of_one(values, taps, record), values, taps, has_aux=True)
            return *differentiated(found), found[2]

        kept = {name: value for name, value in everything.items() if name not in own}
        with self.vectorisable():
            of_all = vmap(gradients_of_one, (None, None, 0), randomness=self._randomness)
            rows, outputs, inputs = of_all(kept, taps, leaves)
        factors = {}
        for name, calls in inputs.items():
            kind, layer = self._layers[name]
            pairs = [(_wide(a), _wide(b)) for a, b in zip(calls, outputs[name], strict=True)]
            factors[f"{name}.weight"] = kind(layer, pairs)
        rows = {name: _wide(own) for name, own in rows.items()}
        forms_rows = self.forms_rows and not all(factor.one_position for factor in factors.values())
        return FactoredGradients(self.groups, factors, rows, size, len(leaves[0]) - size, forms_rows)

    def _find_layers(self) -> Iterator[tuple[str, tuple[type[Factor], nn.Module]]]:
        """Layers whose weight is theirs alone and trained."""
        owners = Counter(id(p) for part in self.module.modules() for p in part.parameters(recurse=False))
        for name, layer in self.module.named_modules():
            weight = layer._parameters.get("weight")
            alone = weight is not None and owners[id(weight)] == 1 and f"{name}.weight" in self.groups.shapes
            kind = _kind(layer)
            if alone and kind is not None:
                yield name, (kind, layer)

    def _output_shapes(self, batch: Any, leaves: list[Tensor], values: dict[str, Tensor]) -> Shapes:
        """Shapes of one record's outputs at every call of a layer; found by one forward pass for every new shape."""
        key = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._shapes:

            def outputs(record: list[Tensor]) -> Any:
                with self._tapped(None) as found:
                    self.loss_with(values, replace_leaves(batch, record))
                return found

            with self.vectorisable(), torch.no_grad(), random_state_kept(self.module):
                found = vmap(outputs, randomness=self._randomness)(leaves)
            self._shapes[key] = {name: [call.shape[1:] for call in calls] for name, calls in found.items()}
        return self._shapes[key]

    @contextmanager
    def _tapped(self, taps: Mapping[str, list[Tensor]] | None) -> Iterator[dict[str, list[Tensor]]]:
        """Inside, the layers add `taps` to their outputs; what is yielded fills with their inputs.

        Without taps it fills with their outputs.
        """
        seen: dict[str, list[Tensor]] = {}

        def hook(name: str) -> Callable[..., Tensor]:
            def tap(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
                calls = seen.setdefault(name, [])
                calls.append(output if taps is None else inputs[0])
                if taps is None:
                    return output
                given = taps.get(name, [])[len(calls) - 1 : len(calls)]
                if not given or given[0].shape != output.shape:
                    raise _OtherCallsError
                return output + given[0]

            return tap

        handles = [layer.register_forward_hook(hook(name)) for name, (_, layer) in self._layers.items()]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    @classmethod
    def fault(cls, trial: PublicTrial) -> str | None:
        """Norms and sums are compared with those of the rows, which are checked as in `functional`."""
        fault = super().fault(trial)
        if fault is not None:
            return fault
        with untouched(trial.module):
            backend = cls(trial.module, trial.loss(), trial.groups, randomness="same")
            rows, factored = backend(trial.records), backend.factored(trial.records)
        if not factored.factors:
            return "has nothing to do: no Linear, convolution or Embedding has a weight of its own"
        norms = row_norms(rows)
        sums = factored.weighted_sum(torch.ones_like(norms))
        bounds = factored.norms()
        if not (torch.allclose(bounds, norms, rtol=TOLERANCE) and close(sums, rows.double().sum(0), trial.tolerance)):
            return "gives other gradients: a weight is also used outside of its layer"
        return None


class _OtherCallsError(Exception):
    """The layers were not called as often, or not with outputs of the shapes, that were found before."""


def _kind(layer: nn.Module) -> type[Factor] | None:
    """How a layer is treated; None for layers that are not understood in every detail."""
    kind: Any = type(layer)
    plain: Any = layer
    if kind is nn.Linear:
        return LinearFactor
    if kind in CONVOLUTIONS and plain.padding_mode == "zeros" and not isinstance(plain.padding, str):
        return ConvolutionFactor
    if kind is nn.Embedding:
        return None if plain.max_norm or plain.sparse or plain.scale_grad_by_freq else EmbeddingFactor
    return None


def _wide(values: Tensor) -> Tensor:
    """Floating point numbers in float32 or wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32)) if values.is_floating_point() else values
