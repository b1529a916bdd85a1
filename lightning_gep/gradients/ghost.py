"""Clipped sums without per-sample gradients: norms from the inputs and output gradients of each layer.

The gradient of a layer's weight for one record is Σₛ bₛaₛᵀ over positions s, with a its inputs and b the gradients of
its outputs. One vectorised backward pass gives all a and b, without the p-sized row of any record. From them come the
norms (Goodfellow 2015; Li et al. 2022 over positions) and, once the clip factors are known, the weighted sum, which
needs no second backward pass (Bu et al. 2023). Parameters of other layers, such as biases and norms, keep their rows.

Records are as separate as in `functional`: the loss is vectorised and sees one record at a time.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.linalg import row_norms
from lightning_gep.algorithm.spectral import SEPARABLE_ABOVE, Rotation
from lightning_gep.gradients.batches import batch_size, padded, replace_leaves
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.interface import scalar
from lightning_gep.gradients.isolation import PublicTrial, close
from lightning_gep.gradients.randomness import HostStates, random_state_kept
from lightning_gep.gradients.state import untouched

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TOLERANCE = 1e-2
"""Norms are upper bounds, a little above the truth."""
Shapes = dict[str, list[torch.Size]]
Backward = tuple[Tensor, Tensor]
"""Inputs and output gradients of one call of a layer, a leading dimension for the records."""


@dataclass(frozen=True)
class FactoredGradients:
    """The gradients of a chunk of records, never formed: rows of some parameters, factors of the others."""

    groups: ParameterGroups
    factors: Mapping[str, "Factor"]
    rows: Mapping[str, Tensor]
    records: int
    padding: int = 0
    """Rows after those of the records that stand for nothing."""

    def __len__(self) -> int:
        return self.records

    def norms(self, rotations: Sequence[Rotation] = ()) -> Tensor:
        """At least the norm of each record's gradient, or of its coordinates z if every parameter has a rotation.

        In float64; not finite where a record's gradient is not.
        """
        by_name = dict(zip(self.groups.shapes, rotations, strict=True)) if rotations else {}
        squares = [factor.squares(by_name.get(name)) for name, factor in self.factors.items()]
        squares += [_squares(rows.reshape(len(rows), -1), by_name.get(name)) for name, rows in self.rows.items()]
        return torch.stack(squares).sum(0).sqrt()[: self.records]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ weightᵢ·gᵢ over the records (p), in float64; records of weight 0 are left out, whatever they hold."""
        weights = torch.cat([weights, weights.new_zeros(self.padding)])
        used = weights > 0
        total = {name: factor.weighted_sum(weights, used) for name, factor in self.factors.items()}
        for name, rows in self.rows.items():
            total[name] = _weighted(rows.double(), weights, used).sum(0)
        return self.groups.flatten({name: part.double()[None] for name, part in total.items()})[0]


class Factor(ABC):
    """A layer's inputs and output gradients for a chunk of records."""

    def __init__(self, layer: Any, calls: list[Backward]) -> None:
        self.layer, self.calls = layer, calls

    @abstractmethod
    def squares(self, rotation: Rotation | None) -> Tensor:
        """At least the squared norm of each record's part."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor, used: Tensor) -> Tensor:
        """Σ weightᵢ·gᵢ in the shape of the weight."""


class LinearFactor(Factor):
    """Positions of all calls together: a is n × T × in, b is n × T × out."""

    def __init__(self, layer: Any, calls: list[Backward]) -> None:
        super().__init__(layer, calls)
        self.a, self.b = (
            torch.cat([side.reshape(len(side), -1, side.shape[-1]) for side in sides], dim=1)
            for sides in zip(*calls, strict=True)
        )

    def squares(self, rotation: Rotation | None) -> Tensor:
        """By products of positions, or by the record's gradient of this one weight, whichever is cheaper."""
        a, b = self.a, self.b
        if rotation is not None and rotation.sides is not None:
            b, a = (rotation.side(i, values) for i, values in enumerate((b, a)))
            rotation = None
        total, terms = (_lengths(a) * _lengths(b)).sum(1), sum(a.shape[1:]) + b.shape[-1]
        if rotation is None and a.shape[1] * (a.shape[2] + b.shape[2]) <= a.shape[2] * b.shape[2]:
            products = torch.bmm(a, a.mT).double() * torch.bmm(b, b.mT).double()
            return products.sum((1, 2)).clamp(min=0) + _gamma(terms) * total**2
        return _squares(torch.bmm(b.mT, a).flatten(1), rotation, _gamma(terms) * total)

    def weighted_sum(self, weights: Tensor, used: Tensor) -> Tensor:
        """One matrix product over all records and positions."""
        return _weighted(self.b, weights, used).flatten(0, 1).mT @ _only(used, self.a).flatten(0, 1)


class ConvolutionFactor(Factor):
    """The gradients of one convolution's weight, by a convolution with a group for every record."""

    def __init__(self, layer: Any, calls: list[Backward]) -> None:
        # A record may be several images to a layer, such as the frames of a film; each is a call of its own.
        images = [side.unbind(1) if side.dim() > layer.weight.dim() else (side,) for call in calls for side in call]
        pairs = zip(images[::2], images[1::2], strict=True)
        super().__init__(layer, [pair for a, b in pairs for pair in zip(a, b, strict=True)])

    def squares(self, rotation: Rotation | None) -> Tensor:
        """From the gradients of this one weight, which are not kept.

        Their channels are rotated before, as those of inputs and output gradients, where these have fewer positions.
        """
        calls, layer = self.calls, self.layer
        if rotation is not None and layer.groups == 1:
            (out, inside, taps), (positions, others) = rotation.scales.shape, (side[0, 0].numel() for side in calls[0])
            if positions < out * taps:
                calls = [(_channels(a, rotation.bases[1]), b) for a, b in calls]
                rotation = rotation.without(1)
            if others < inside * taps:
                calls = [(a, _channels(b, rotation.bases[0])) for a, b in calls]
                rotation = rotation.without(0)
        rows = torch.stack([self._gradients(a, b) for a, b in calls]).sum(0).flatten(1)
        return _squares(rows, rotation, self._rounding())

    def weighted_sum(self, weights: Tensor, used: Tensor) -> Tensor:
        """One backward pass of the convolution over all records."""
        sums = [
            self._backward(_only(used, a), _weighted(b, weights, used), self._weight, self.layer.groups)
            for a, b in self.calls
        ]
        return torch.stack(sums).sum(0)

    def _gradients(self, a: Tensor, b: Tensor) -> Tensor:
        weights = self._weight.expand(len(a), *self._weight.shape).flatten(0, 1)
        rows = self._backward(a.flatten(0, 1)[None], b.flatten(0, 1)[None], weights, len(a) * self.layer.groups)
        return rows.unflatten(0, (len(a), -1))

    def _backward(self, a: Tensor, b: Tensor, weight: Tensor, groups: int) -> Tensor:
        layer = self.layer
        geometry = (layer.stride, layer.padding, layer.dilation, False, [0] * (a.dim() - 2), groups)
        _, gradient, _ = torch.ops.aten.convolution_backward(b, a, weight, None, *geometry, [False, True, False])
        return gradient

    def _rounding(self) -> Tensor:
        """A bound on the rounding of a record's gradient: the lengths of patches, from squares and a kernel of ones."""
        layer, ones = self.layer, torch.ones_like(self._weight[:1, :1])
        convolve = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[ones.dim()]
        total, terms = ones.new_zeros(len(self.calls[0][0]), dtype=torch.float64), 0
        for a, b in self.calls:
            patches = convolve(a.square().sum(1, keepdim=True), ones, None, layer.stride, layer.padding, layer.dilation)
            lengths = patches.clamp(min=0).sqrt() * b.square().sum(1, keepdim=True).sqrt()
            total, terms = total + lengths.flatten(1).sum(1).double(), terms + lengths[0].numel()
        return _gamma(terms) * total

    @property
    def _weight(self) -> Tensor:
        return self.layer.weight.detach().to(self.calls[0][0])


class EmbeddingFactor(Factor):
    """a holds indices; only positions with the same index meet in the norm."""

    def __init__(self, layer: Any, calls: list[Backward]) -> None:
        super().__init__(layer, calls)
        self.indices = torch.cat([a.reshape(len(a), -1) for a, _ in calls], dim=1)
        b = torch.cat([b.reshape(len(b), -1, b.shape[-1]) for _, b in calls], dim=1)
        padding = layer.padding_idx
        self.b = b if padding is None else torch.where((self.indices == padding)[..., None], 0.0, b)

    def squares(self, rotation: Rotation | None) -> Tensor:
        """Products of the positions with the same index; a small table that is rotated is filled instead."""
        if rotation is not None and rotation.bases[0] is not None:
            rows = self.b.new_zeros(len(self.b), *self.layer.weight.shape)
            rows.scatter_add_(1, self.indices[..., None].expand(self.b.shape), self.b)
            return _squares(rows.flatten(1), rotation, _gamma(self.b.shape[1]) * _lengths(self.b).sum(1))
        b = self.b if rotation is None else rotation.of_rows(self.b, self.indices)
        same = self.indices[:, :, None] == self.indices[:, None, :]
        products = torch.where(same, torch.bmm(b, b.mT), 0.0).double()
        return products.sum((1, 2)).clamp(min=0) + _gamma(sum(b.shape[1:])) * _lengths(b).sum(1) ** 2

    def weighted_sum(self, weights: Tensor, used: Tensor) -> Tensor:
        """Adds up rows of the table."""
        b = _weighted(self.b, weights, used).flatten(0, 1)
        return b.new_zeros(self.layer.weight.shape).index_add_(0, self.indices.flatten(), b)


class GhostGradients(FunctionalGradients):
    """Factors instead of rows for Linear, convolutions and Embeddings; `rows` are those of `functional`."""

    name = "ghost"

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._layers = dict(self._find_layers())
        self._shapes: dict[Any, Shapes] = {}

    @property
    def held_per_record(self) -> int:
        """The rows that are kept, and the gradient of one weight at a time where its norm needs it."""
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
        if begin_with is not None:
            begin_with.put_back()
        try:
            return self._factored(padded(batch, chunk_size or size), size)
        finally:
            put_back()

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
                return self._loss({**values, **constant}, batch, record), inputs

        kept = {name: value for name, value in everything.items() if name not in own}
        with self.vectorisable():
            of_all = vmap(grad(loss_of_one, argnums=(0, 1), has_aux=True), (None, None, 0), randomness=self._randomness)
            (rows, outputs), inputs = of_all(kept, taps, leaves)
        factors = {}
        for name, calls in inputs.items():
            kind, layer = self._layers[name]
            pairs = [(_wide(a), _wide(b)) for a, b in zip(calls, outputs[name], strict=True)]
            factors[f"{name}.weight"] = kind(layer, pairs)
        return FactoredGradients(self.groups, factors, rows, size, len(leaves[0]) - size)

    def _loss(self, values: dict[str, Tensor], batch: Any, record: list[Tensor]) -> Tensor:
        swapped = {f"module.{name}": value for name, value in values.items()}
        return scalar(functional_call(self._step, swapped, (replace_leaves(batch, record),)))

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
                    self._loss(values, batch, record)
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
                return output if taps is None else output + taps[name][len(calls) - 1]

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


def _squares(rows: Tensor, rotation: Rotation | None, error: Tensor | float = 0.0) -> Tensor:
    """Squared norms of rows, or of their coordinates, that may be off by `error` in norm."""
    if rotation is None:
        return (row_norms(rows) + error) ** 2
    return (row_norms(rotation.coordinates(rows)) + error / float(rotation.scales.min())) ** 2


def _channels(images: Tensor, basis: Tensor | None) -> Tensor:
    """Images (n × channels × …) with their channels rotated."""
    return images if basis is None else (basis.T @ images.flatten(2)).view(images.shape)


def _wide(values: Tensor) -> Tensor:
    """Floating point numbers in float32 or wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32)) if values.is_floating_point() else values


def _gamma(terms: int) -> float:
    """Relative rounding error of a float32 sum of so many products, in any order (Higham 2002, section 3.1)."""
    unit = terms * torch.finfo(torch.float32).eps / 2
    return unit / (1 - unit)


def _lengths(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors.double(), dim=-1)


def _only(used: Tensor, values: Tensor) -> Tensor:
    """Zeros in the place of records that are not used: 0·NaN would be NaN."""
    return torch.where(used.view(-1, *[1] * (values.dim() - 1)), values, 0.0)


def _weighted(values: Tensor, weights: Tensor, used: Tensor) -> Tensor:
    return _only(used, values) * weights.to(values).view(-1, *[1] * (values.dim() - 1))
