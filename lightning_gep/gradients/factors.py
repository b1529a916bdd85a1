"""Per-sample gradients as the inputs of layers and the gradients of their outputs: norms, sums and rows.

The gradient of a layer's weight for one record is Σₛ bₛaₛᵀ over positions s, with a its inputs and b the gradients of
its outputs. From them come the norms (Goodfellow 2015; Li et al. 2022 over positions) and, once the clip factors are
known, the weighted sum, which needs no second backward pass (Bu et al. 2023). In coordinates z = (UᵀgV)/d they save
most of the work: a and b are turned in the place of the gradient, wherever they have fewer numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import full_precision
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.linalg import row_norms
from lightning_gep.algorithm.spectral import Rotation, rows_at_once

Backward = tuple[Tensor, Tensor]
"""Inputs and output gradients of one call of a layer, a leading dimension for the records."""


@dataclass(frozen=True)
class FactoredGradients:
    """The gradients of a chunk of records: rows of some parameters, factors of the others."""

    groups: ParameterGroups
    factors: Mapping[str, "Factor"]
    rows: Mapping[str, Tensor]
    records: int
    padding: int = 0
    """Rows after those of the records that stand for nothing."""
    forms_rows: bool = False
    """Whether there is room for the rows of all parameters."""

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

    def coordinates(self, rotations: Sequence[Rotation] = ()) -> Tensor:
        """The records' gradients (n × p), or their coordinates z if every parameter has a rotation.

        Products have the size of the padded chunk, so that a row does not depend on how many records there are.
        """
        tensors = [*(factor.like for factor in self.factors.values()), *self.rows.values()]
        formed = tensors[0].new_empty(self.records + self.padding, self.groups.num_parameters)
        sizes = [shape.numel() for shape in self.groups.shapes.values()]
        turns: Sequence[Rotation | None] = rotations or [None] * len(sizes)
        with full_precision(formed.device):
            for name, rotation, out in zip(self.groups.shapes, turns, formed.split(sizes, dim=1), strict=True):
                if name in self.factors:
                    self.factors[name].coordinates(rotation, out)
                else:
                    _into(out, self.rows[name].flatten(1), rotation)
        return formed[: self.records]

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

    @property
    def like(self) -> Tensor:
        """A tensor with the device and precision of the gradients."""
        return self.calls[0][1]

    @abstractmethod
    def squares(self, rotation: Rotation | None) -> Tensor:
        """At least the squared norm of each record's part."""

    @abstractmethod
    def turned(self, rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
        """Each record's gradient of the weight (n × size), rotated where that is cheap, and what is left to do."""

    def coordinates(self, rotation: Rotation | None, out: Tensor) -> None:
        """Write each record's gradient, or its coordinates, to the columns of this weight."""
        rows, left = self.turned(rotation)
        _into(out, rows, left)

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
        if rotation is not None and a.shape[1] == 1:
            error = (_gamma(terms) + _of_turning(rotation, rotation.without(0).without(1))) * total
            return _squares_of_one(b, a, rotation, error)
        if rotation is None and a.shape[1] * (a.shape[2] + b.shape[2]) <= a.shape[2] * b.shape[2]:
            products = torch.bmm(a, a.mT).double() * torch.bmm(b, b.mT).double()
            return products.sum((1, 2)).clamp(min=0) + _gamma(terms) * total**2
        rows, left = _turned_products(b, a, rotation)
        return _squares(rows, left, (_gamma(terms) + _of_turning(rotation, left)) * total)

    def turned(self, rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
        """One product of output gradients and inputs for each record."""
        return _turned_products(self.b, self.a, rotation)

    def coordinates(self, rotation: Rotation | None, out: Tensor) -> None:
        """As for other layers, but the products of a few records at a time."""
        b, a, left = _turned_vectors(self.b, self.a, rotation)
        at_once = rows_at_once(out)
        for own, first, second in zip(out.split(at_once), b.split(at_once), a.split(at_once), strict=True):
            _into(own, _products(first, second), left)

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
        """From the gradients of this one weight, which are not kept."""
        rows, left = self.turned(rotation)
        return _squares(rows, left, self._rounding(_of_turning(rotation, left)))

    def turned(self, rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
        """Channels of inputs and output gradients are rotated where these have fewer positions than the gradient."""
        calls, layer = self.calls, self.layer
        if rotation is not None and layer.groups == 1:
            (out, inside, taps), (positions, others) = rotation.scales.shape, (side[0, 0].numel() for side in calls[0])
            if positions < out * taps:
                calls = [(_channels(a, rotation.bases[1]), b) for a, b in calls]
                rotation = rotation.without(1)
            if others < inside * taps:
                calls = [(a, _channels(b, rotation.bases[0])) for a, b in calls]
                rotation = rotation.without(0)
        return reduce(torch.add, (self._gradients(a, b) for a, b in calls)).flatten(1), rotation

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

    def _rounding(self, more: float = 0.0) -> Tensor:
        """A bound on the rounding of a record's gradient: the lengths of patches, from squares and a kernel of ones.

        `more` is the relative error that inputs and output gradients have already.
        """
        layer, ones = self.layer, torch.ones_like(self._weight[:1, :1])
        convolve = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[ones.dim()]
        total, terms = ones.new_zeros(len(self.calls[0][0]), dtype=torch.float64), 0
        for a, b in self.calls:
            patches = convolve(a.square().sum(1, keepdim=True), ones, None, layer.stride, layer.padding, layer.dilation)
            lengths = patches.clamp(min=0).sqrt() * b.square().sum(1, keepdim=True).sqrt()
            total, terms = total + lengths.flatten(1).sum(1).double(), terms + lengths[0].numel()
        return (_gamma(terms) + more) * total

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
            rows, left = self.turned(rotation)
            error = _gamma(sum(self.b.shape[1:])) + _of_turning(rotation.without(0), left)
            return _squares(rows, left, error * _lengths(self.b).sum(1))
        b = self.b if rotation is None else rotation.of_rows(self.b, self.indices)
        same = self.indices[:, :, None] == self.indices[:, None, :]
        products = torch.where(same, torch.bmm(b, b.mT), 0.0).double()
        return products.sum((1, 2)).clamp(min=0) + _gamma(sum(b.shape[1:])) * _lengths(b).sum(1) ** 2

    def turned(self, rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
        """The rows of the table's rotation stand for its one-hot inputs."""
        if rotation is None or rotation.bases[0] is None:
            rows = self.b.new_zeros(len(self.b), *self.layer.weight.shape)
            rows.scatter_add_(1, self.indices[..., None].expand(self.b.shape), self.b)
            return rows.flatten(1), rotation
        inputs = rotation.bases[0].to(self.b)[self.indices]
        return _turned_products(inputs, self.b, rotation.without(0))

    def weighted_sum(self, weights: Tensor, used: Tensor) -> Tensor:
        """Adds up rows of the table."""
        b = _weighted(self.b, weights, used).flatten(0, 1)
        return b.new_zeros(self.layer.weight.shape).index_add_(0, self.indices.flatten(), b)


def _squares(rows: Tensor, rotation: Rotation | None, error: Tensor | float = 0.0) -> Tensor:
    """Squared norms of rows, or of their coordinates, that may be off by `error` in norm."""
    if rotation is None:
        return (row_norms(rows) + error) ** 2
    return (row_norms(rotation.coordinates(rows)) + error / float(rotation.scales.min())) ** 2


def _into(out: Tensor, rows: Tensor, rotation: Rotation | None) -> None:
    """Write rows, or their coordinates, to columns of a matrix."""
    if rotation is None:
        out.copy_(rows)
    else:
        rotation.coordinates(rows, out)


def _turned_products(first: Tensor, second: Tensor, rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
    """Σₜ firstₜsecondₜᵀ (n × first·second) of vectors at n × T positions, and the rotations that are left to do."""
    first, second, left = _turned_vectors(first, second, rotation)
    return _products(first, second), left


def _turned_vectors(first: Tensor, second: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Rotation | None]:
    """A side is rotated before the product if there are no more positions than the other side has entries."""
    if rotation is not None:
        (rows, columns), positions = rotation.scales.shape, first.shape[1]
        if positions <= columns:
            first, rotation = _turn(first, rotation.bases[0]), rotation.without(0)
        if positions <= rows:
            second, rotation = _turn(second, rotation.bases[1]), rotation.without(1)
    return first, second, rotation


def _products(first: Tensor, second: Tensor) -> Tensor:
    """Σₜ firstₜsecondₜᵀ, flattened."""
    return (first.mT * second if first.shape[1] == 1 else torch.bmm(first.mT, second)).flatten(1)


def _squares_of_one(first: Tensor, second: Tensor, rotation: Rotation, error: Tensor) -> Tensor:
    """Squared norms of the coordinates at a single position: Σ first²second²/d², without the products themselves."""
    rows, columns = (
        _turn(side, basis)[:, 0].double() ** 2 for side, basis in zip((first, second), rotation.bases, strict=True)
    )
    squares = ((rows @ rotation.scales.double() ** -2) * columns).sum(1)
    return (squares.sqrt() + error / float(rotation.scales.min())) ** 2


def _of_turning(before: Rotation | None, after: Rotation | None) -> float:
    """The relative rounding error of vectors that were rotated: of length c by V, at most γ_c‖V‖_F."""
    if before is None or after is None:
        return 0.0
    done = [old for old, new in zip(before.bases, after.bases, strict=True) if old is not None and new is None]
    return sum(_gamma(len(basis)) * float(basis.double().norm()) for basis in done)


def _turn(vectors: Tensor, basis: Tensor | None) -> Tensor:
    return vectors if basis is None else vectors @ basis.to(vectors)


def _channels(images: Tensor, basis: Tensor | None) -> Tensor:
    """Images (n × channels × …) with their channels rotated."""
    return images if basis is None else (basis.to(images).T @ images.flatten(2)).view(images.shape)


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
