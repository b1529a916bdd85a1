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
from torch.nn.functional import pad

from lightning_gep.algorithm.basis import full_precision
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.linalg import row_norms, weighted_sum
from lightning_gep.algorithm.spectral import (
    NUMBERS_AT_ONCE,
    Rotation,
    rows_at_once,
    turned_from_the_left,
    turned_from_the_right,
)

SMALLEST = 2.0**-100
"""More than a product can lose where it underflows, in units of a record's largest numbers."""
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
    """Whether the rows of all parameters are to be formed."""

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
                    _into(out, self.rows[name].reshape(out.shape), rotation)
        return formed[: self.records]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ weightᵢ·gᵢ over the records (p), in float64; records of weight 0 are left out, whatever they hold."""
        weights = torch.cat([weights, weights.new_zeros(self.padding)])
        total = {name: factor.weighted_sum(weights) for name, factor in self.factors.items()}
        for name, rows in self.rows.items():
            total[name] = _weighted(rows.double(), weights, weights > 0).sum(0)
        return self.groups.flatten({name: part[None] for name, part in total.items()})[0]


class Factor(ABC):
    """A layer's inputs and output gradients for a chunk of records, each record in units of its largest numbers.

    Guarantee: what a record adds to `weighted_sum` is no longer than its weight times the root of `squares`. However
    its positions cancel, no larger numbers are ever added to those of other records, which would be rounded off.
    """

    def __init__(self, layer: Any, calls: list[Backward]) -> None:
        self.layer, self.calls = layer, calls

    @property
    def one_position(self) -> bool:
        """Whether the gradient is one product baᵀ: its norm and the sum then take less than the gradient itself."""
        return False

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
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ weightᵢ·gᵢ in float64 in the shape of the weight; records of weight 0 may hold anything."""


class LinearFactor(Factor):
    """Positions of all calls together: a is n × T × in, b is n × T × out."""

    def __init__(self, layer: Any, calls: list[Backward]) -> None:
        super().__init__(layer, calls)
        self.a, self.b = (
            torch.cat([side.reshape(len(side), -1, side.shape[-1]) for side in sides], dim=1)
            for sides in zip(*calls, strict=True)
        )

    @property
    def one_position(self) -> bool:
        """Whether the layer is called once, with one vector for each record."""
        return self.a.shape[1] == 1

    def squares(self, rotation: Rotation | None) -> Tensor:
        """By products of positions, or by the record's gradient of this one weight, whichever is cheaper."""
        ((a,), (b,)), units = _in_own_units([self.a], [self.b])
        if rotation is not None and rotation.sides is not None:
            b, a = (rotation.side(i, values) for i, values in enumerate((b, a)))
            rotation = None
        (_, count, inside), outside = a.shape, b.shape[-1]
        # The products that are added up, here and, with a factor for the norm's square, in `weighted_sum`.
        gamma, lost = _gamma(3 * count + inside + outside), count * (inside + outside) * SMALLEST
        total = (_lengths(a) * _lengths(b)).sum(1)
        if rotation is not None and self.one_position:
            error = (gamma + _of_turning(rotation, rotation.without(0).without(1))) * total + lost
            squares = _squares_of_one(b, a, rotation, error)
        elif rotation is None and count * (inside + outside) <= inside * outside:
            products = torch.bmm(a, a.mT).double() * torch.bmm(b, b.mT).double()
            squares = products.sum((1, 2)).clamp(min=0) + gamma * total**2 + (count * (inside + outside)) * lost
        else:
            rows, left = _turned_products(b, a, rotation)
            squares = _squares(rows, left, (gamma + _of_turning(rotation, left)) * total + lost)
        return squares * units**2

    def turned(self, rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
        """One product of output gradients and inputs for each record."""
        return _turned_products(self.b, self.a, rotation)

    def coordinates(self, rotation: Rotation | None, out: Tensor) -> None:
        """As for other layers, but the products of a few records at a time."""
        b, a, left = _turned_vectors(self.b, self.a, rotation)
        at_once = rows_at_once(out)
        for own, first, second in zip(out.split(at_once), b.split(at_once), a.split(at_once), strict=True):
            _into(own, _products(first, second), left)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """One matrix product if there is a single position, where nothing can cancel; else from each record's own."""
        ((a,), (b,)), units = _in_own_units([self.a], [self.b])
        used, weights = weights > 0, _only(weights > 0, weights * units)
        if self.one_position:
            return (_weighted(b, weights, used).flatten(0, 1).mT @ _only(used, a).flatten(0, 1)).double()
        at_once = max(1, NUMBERS_AT_ONCE // self.layer.weight.numel())
        parts = zip(*(values.split(at_once) for values in (b, a, weights, used)), strict=True)
        sums = (weighted_sum(factors, _products(first, second), own) for first, second, factors, own in parts)
        return reduce(torch.add, sums).view(self.layer.weight.shape)


class ConvolutionFactor(Factor):
    """The gradients of one convolution's weight, by a convolution with a group for every record."""

    def __init__(self, layer: Any, calls: list[Backward]) -> None:
        # A record may be several images to a layer, such as the frames of a film; each is a call of its own.
        images = [side.unbind(1) if side.dim() > layer.weight.dim() else (side,) for call in calls for side in call]
        pairs = zip(images[::2], images[1::2], strict=True)
        super().__init__(layer, [pair for a, b in pairs for pair in zip(a, b, strict=True)])

    def squares(self, rotation: Rotation | None) -> Tensor:
        """From the gradients of this one weight, which are not kept."""
        calls, units = self._in_own_units()
        rows, left = self._turned(calls, rotation)
        return _squares(rows, left, self._rounding(calls, _of_turning(rotation, left))) * units**2

    def turned(self, rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
        """Channels of inputs and output gradients are rotated where these have fewer positions than the gradient."""
        return self._turned(self.calls, rotation)

    def _turned(self, calls: list[Backward], rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
        layer = self.layer
        if rotation is not None and layer.groups == 1:
            (out, inside, taps), (positions, others) = rotation.scales.shape, (side[0, 0].numel() for side in calls[0])
            if positions < out * taps:
                calls = [(turned_from_the_left(a, rotation.bases[1]), b) for a, b in calls]
                rotation = rotation.without(1)
            if others < inside * taps:
                calls = [(a, turned_from_the_left(b, rotation.bases[0])) for a, b in calls]
                rotation = rotation.without(0)
        return reduce(torch.add, (self._gradients(a, b) for a, b in calls)).flatten(1), rotation

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """From each record's own: in one backward pass over all, those that cancel between calls drown the others."""
        calls, units = self._in_own_units()
        used = weights > 0
        rows, _ = self._turned(calls, None)
        return weighted_sum(_only(used, weights * units), rows, used).view(self.layer.weight.shape)

    def _in_own_units(self) -> tuple[list[Backward], Tensor]:
        (a, b), units = _in_own_units(*zip(*self.calls, strict=True))
        return list(zip(a, b, strict=True)), units

    def _gradients(self, a: Tensor, b: Tensor) -> Tensor:
        layer, (out, *kernel) = self.layer, self.layer.weight.shape
        like_the_weights = a.new_empty(len(a) * out, *kernel)  # only the shape is read
        geometry = (layer.stride, layer.padding, layer.dilation, False, [0] * len(kernel[1:]), len(a) * layer.groups)
        a, b = (side.flatten(0, 1)[None] for side in (a, b))
        gradients = torch.ops.aten.convolution_backward(b, a, like_the_weights, None, *geometry, [False, True, False])
        return gradients[1].unflatten(0, (-1, out))

    def _rounding(self, calls: list[Backward], more: float = 0.0) -> Tensor:
        """A bound on the rounding of a record's gradient: the lengths of patches, from sums of squares.

        It is computed twice, here and in `weighted_sum`, and may be rounded the other way. `more` is the relative error
        of rotating inputs and output gradients.
        """
        total, terms = calls[0][0].new_zeros(len(calls[0][0]), dtype=torch.float64), 0
        for a, b in calls:
            patches = _sums_of_windows(a.double().square().sum(1), self.layer)
            lengths = patches.sqrt() * b.double().square().sum(1).sqrt()
            total, terms = total + lengths.flatten(1).sum(1), terms + lengths[0].numel()
        return (_gamma(2 * terms) + more) * total + 2 * terms * self.layer.weight.numel() * SMALLEST


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
        ((b,),), units = _in_own_units([self.b])
        count, length = b.shape[1:]
        gamma, lost = _gamma(count + length), count * length * SMALLEST
        if rotation is not None and rotation.bases[0] is not None:
            rows, left = self._turned(b, rotation)
            error = gamma + _of_turning(rotation.without(0), left)
            return _squares(rows, left, error * _lengths(b).sum(1) + lost) * units**2
        b = b if rotation is None else rotation.of_rows(b, self.indices)
        same = self.indices[:, :, None] == self.indices[:, None, :]
        products = torch.where(same, torch.bmm(b, b.mT), 0.0).double()
        return (products.sum((1, 2)).clamp(min=0) + gamma * _lengths(b).sum(1) ** 2 + count * lost) * units**2

    def coordinates(self, rotation: Rotation | None, out: Tensor) -> None:
        """As for other layers, but in a table whose rows are not rotated only those of the record's indices."""
        if rotation is None or rotation.bases[0] is not None:
            super().coordinates(rotation, out)
            return
        rows = rotation.of_rows(self.b, self.indices)
        table = out.zero_().unflatten(1, self.layer.weight.shape)
        table.scatter_add_(1, self.indices[..., None].expand(rows.shape), rows)

    def turned(self, rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
        """The rows of the table's rotation stand for its one-hot inputs."""
        return self._turned(self.b, rotation)

    def _turned(self, b: Tensor, rotation: Rotation | None) -> tuple[Tensor, Rotation | None]:
        if rotation is None or rotation.bases[0] is None:
            rows = b.new_zeros(len(b), *self.layer.weight.shape)
            rows.scatter_add_(1, self.indices[..., None].expand(b.shape), b)
            return rows.flatten(1), rotation
        inputs = rotation.bases[0].to(b)[self.indices]
        return _turned_products(inputs, b, rotation.without(0))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Adds up rows of the table, in float64."""
        ((b,),), units = _in_own_units([self.b])
        used = weights > 0
        rows = _weighted(b.double(), _only(used, weights * units), used).flatten(0, 1)
        return rows.new_zeros(self.layer.weight.shape).index_add_(0, self.indices.flatten(), rows)


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
            first, rotation = turned_from_the_right(first, rotation.bases[0]), rotation.without(0)
        if positions <= rows:
            second, rotation = turned_from_the_right(second, rotation.bases[1]), rotation.without(1)
    return first, second, rotation


def _products(first: Tensor, second: Tensor) -> Tensor:
    """Σₜ firstₜsecondₜᵀ, flattened."""
    return (first.mT * second if first.shape[1] == 1 else torch.bmm(first.mT, second)).flatten(1)


def _squares_of_one(first: Tensor, second: Tensor, rotation: Rotation, error: Tensor) -> Tensor:
    """Squared norms of the coordinates at a single position: Σ first²second²/d², without the products themselves."""
    rows, columns = (
        turned_from_the_right(side, basis)[:, 0].double() ** 2
        for side, basis in zip((first, second), rotation.bases, strict=True)
    )
    squares = ((rows @ rotation.scales.double() ** -2) * columns).sum(1)
    return (squares.sqrt() + error / float(rotation.scales.min())) ** 2


def _of_turning(before: Rotation | None, after: Rotation | None) -> float:
    """The relative rounding error of vectors that were rotated: of length c by V, at most γ_c‖V‖_F."""
    if before is None or after is None:
        return 0.0
    done = [old for old, new in zip(before.bases, after.bases, strict=True) if old is not None and new is None]
    return sum(_gamma(len(basis)) * float(basis.double().norm()) for basis in done)


def _gamma(terms: int) -> float:
    """Relative rounding error of a float32 sum of so many products, in any order (Higham 2002, section 3.1)."""
    unit = terms * torch.finfo(torch.float32).eps / 2
    return unit / (1 - unit)


def _in_own_units(*sides: Sequence[Tensor]) -> tuple[list[list[Tensor]], Tensor]:
    """The calls of each side divided by each record's largest entry in any of them, and what products of the sides have
    to be multiplied by (n, float64).

    Products of such numbers neither overflow nor, but for those `SMALLEST` bounds, underflow. A record with an entry
    that is not finite gets a factor that is not finite, also where no product reads that entry.
    """
    largest = [torch.stack([call.flatten(1).abs().amax(1) for call in side]).amax(0) for side in sides]
    largest = [torch.where(values == 0, torch.ones_like(values), values) for values in largest]
    values = [
        [call / unit.view(-1, *[1] * (call.dim() - 1)) for call in side]
        for side, unit in zip(sides, largest, strict=True)
    ]
    return values, torch.stack([unit.double() for unit in largest]).prod(0)


def _sums_of_windows(values: Tensor, layer: Any) -> Tensor:
    """Sums of values (n × …) over what each output of a convolution sees, one side after the other."""
    settings = zip(layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
    for side, (length, stride, padding, dilation) in enumerate(settings, start=1):
        windows = pad(values.movedim(side, -1), (padding, padding)).unfold(-1, (length - 1) * dilation + 1, stride)
        values = windows[..., ::dilation].sum(-1).movedim(-1, side)
    return values


def _lengths(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors.double(), dim=-1)


def _only(used: Tensor, values: Tensor) -> Tensor:
    """Zeros in the place of records that are not used: 0·NaN would be NaN."""
    return torch.where(used.view(-1, *[1] * (values.dim() - 1)), values, 0.0)


def _weighted(values: Tensor, weights: Tensor, used: Tensor) -> Tensor:
    return _only(used, values) * weights.to(values).view(-1, *[1] * (values.dim() - 1))
