"""Spectral perturbation: noise shaped by the whole spectrum of the public gradients.

GEP has two levels of noise, one inside the anchor subspace and one outside. Here every direction gets the level that
its public energy calls for. A gradient is written in coordinates z = (Uᵀ g V)/d per parameter tensor, where U and V are
eigenvectors of the anchor gradients' covariances and d grows with the anchors' energy in each direction. Clipping and
noise are DP-SGD's, applied to z; mapping the noisy sum back gives an unbiased gradient with shaped noise.

Privacy: the map from g to z is public, and z itself is clipped, so a step is one sampled Gaussian with noise multiplier
σ, exactly as in DP-SGD. Mapping back is post-processing. Nothing rests on U and V being orthogonal.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d

from lightning_gep.algorithm.basis import Basis, FactoredRows, full_precision
from lightning_gep.algorithm.subspace import Anchors, Subspace
from lightning_gep.arguments import positive_integer

LARGEST_SIDE = 512
"""A longer side of a tensor, such as the rows of an embedding table, is not rotated: its eigenvectors would take longer
than the gradients of a step."""
SEPARABLE_ABOVE = 2**20
"""Entries of a matrix above which its energies are taken as products of those of its rows and columns. A few anchors
cannot tell so many apart, and norms then follow from inputs and output gradients of a layer alone (ghost clipping)."""
LONGEST_ANCHOR = 1e15
"""Longer gradients, and those that are not finite, are left out: their squares would leave the range of float32."""
NUMBERS_AT_ONCE = 2**19
"""Entries of gradients that a CPU turns at a time: they then stay in its cache, which saves a third of the time."""
LARGE_KERNEL = 16
"""Entries of a kernel from which one product over all channels is faster than one for each output channel."""
LONG_SIDE, POSITIONS = 64, range(16, 513)
"""Where a CPU turns a side faster by a convolution of 1 × 1: oneDNN uses AVX-512 on processors on which MKL does not.
Measured on an AMD EPYC: 1.2 to 2.8 times as fast, for a side of 64 at 32 positions as fast."""
EXPONENT = 0.25
"""d = energy^(1/4) minimizes the total noise. With d = D^a, a record's ‖z‖² has mean Σ D^(1−2a), which sets the
clipping threshold, and the noise mapped back has energy proportional to Σ D^(2a). By Cauchy–Schwarz their product is
least where both sums are the same: a = 1/4."""


@dataclass(frozen=True)
class Rotation:
    """The coordinates of one parameter tensor: a basis for each of its sides (None: identity) and scales d."""

    bases: tuple[Tensor | None, ...]
    scales: Tensor
    """d, in the shape of the tensor's sides."""
    sides: tuple[Tensor, ...] | None = None
    """Where d is a product of a vector for each side: these vectors."""

    @classmethod
    def separable(cls, bases: tuple[Tensor | None, ...], sides: tuple[Tensor, Tensor]) -> "Rotation":
        """Scales that are products."""
        return cls(bases, torch.outer(*sides), sides)

    def in_units(self, unit: float, dtype: torch.dtype) -> "Rotation":
        """With scales divided by `unit`."""
        if self.sides is None:
            return Rotation(self.bases, (self.scales / unit).to(dtype))
        rows, columns = self.sides
        return Rotation.separable(self.bases, ((rows / unit).to(dtype), columns.to(dtype)))

    def coordinates(self, gradients: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows g to rows z = (Uᵀ g V)/d, flattened (n × size); written to `out`, which may be the rows, if given."""
        out = torch.empty_like(gradients) if out is None else out
        at_once = rows_at_once(gradients)
        for rows, own in zip(gradients.split(at_once), out.split(at_once), strict=True):
            turned = _turned(rows.reshape(len(rows), *self.scales.shape), self.bases)
            own = own.view(turned.shape)
            if turned.is_contiguous():
                torch.div(turned, self.scales, out=own)
            else:  # dividing while transposing takes longer than one after the other
                own.copy_(turned).div_(self.scales)
        return out

    def side(self, side: int, values: Tensor) -> Tensor:
        """Vectors (… × side) in the coordinates of one side, for scales that are products: z = Σₛ b̃ₛãₛᵀ."""
        assert self.sides is not None
        basis = self.bases[side]
        return turned_from_the_right(values, basis) / self.sides[side]

    def without(self, side: int) -> "Rotation":
        """The coordinates of tensors that are rotated along one side already."""
        return replace(self, bases=tuple(None if i == side else basis for i, basis in enumerate(self.bases)))

    def of_rows(self, values: Tensor, indices: Tensor) -> Tensor:
        """Gradients (… × length) of single rows of a table in its coordinates; the rows themselves are not rotated."""
        _, basis = self.bases
        return turned_from_the_right(values, basis) / self.scales[indices]

    def gradient(self, values: Tensor) -> Tensor:
        """The inverse for a single vector in float64: U (d ∘ z) Vᵀ."""
        return self._turned_back(self.scales.double() * values.view(self.scales.shape))

    def update(self, values: Tensor) -> Tensor:
        """U z Vᵀ: mapped back without the scales, which preconditions the gradient by 1/d."""
        return self._turned_back(values.view(self.scales.shape))

    def to(self, device: torch.device) -> "Rotation":
        """The same on another device."""
        bases = tuple(None if basis is None else basis.to(device) for basis in self.bases)
        sides = None if self.sides is None else tuple(side.to(device) for side in self.sides)
        return Rotation(bases, self.scales.to(device), sides)

    def _turned_back(self, values: Tensor) -> Tensor:
        bases = tuple(None if basis is None else basis.T for basis in self.bases)
        return _turned(values[None], bases)[0].flatten()


@dataclass(frozen=True)
class SpectralBasis(Basis):
    """No basis vectors, but coordinates for all gradients; what is clipped and perturbed is z, as in DP-SGD."""

    rotations: tuple[Rotation, ...] = ()
    precondition: bool = False

    @property
    def tensor_sizes(self) -> list[int]:
        """Number of entries of each parameter tensor."""
        return [rotation.scales.numel() for rotation in self.rotations]

    @property
    def unit_noise(self) -> float:
        """Σd², or the number of parameters where the scales are left out; rotations change no length."""
        if self.precondition:
            return float(self.num_parameters)
        return sum(float(rotation.scales.double().square().sum()) for rotation in self.rotations)

    def coordinates(self, gradients: Tensor) -> Tensor:
        """Replace rows of flat gradients by their coordinates z, in place."""
        with full_precision(gradients.device):
            for rotation, columns in zip(self.rotations, gradients.split(self.tensor_sizes, dim=1), strict=True):
                rotation.coordinates(columns, out=columns)
        return gradients

    def formed(self, gradients: FactoredRows) -> Tensor:
        """The coordinates of gradients that are given as factors (n × p)."""
        return gradients.coordinates(self.rotations)

    def norms(self, gradients: FactoredRows) -> Tensor:
        """At least the norm of z of each record."""
        return gradients.norms(self.rotations)

    def gradient(self, values: Tensor) -> Tensor:
        """The gradient, or the preconditioned update, that belongs to a flat vector of coordinates."""
        parts = zip(self.rotations, values.split(self.tensor_sizes), strict=True)
        if self.precondition:
            return torch.cat([rotation.update(part) for rotation, part in parts])
        return torch.cat([rotation.gradient(part) for rotation, part in parts])

    def to(self, device: torch.device) -> "SpectralBasis":
        """The same on another device."""
        moved = tuple(rotation.to(device) for rotation in self.rotations)
        return replace(self, blocks=tuple(block.to(device) for block in self.blocks), rotations=moved)


@dataclass
class TensorSpectrum:
    """Running means over the anchors of one parameter tensor: a covariance per side, and the energy of every entry."""

    covariances: list[Tensor | None]
    bases: list[Tensor | None]
    energies: Tensor
    """D: mean squares of the entries of UᵀGV."""

    @classmethod
    def zero(cls, sides: Sequence[int], like: Tensor) -> "TensorSpectrum":
        """No anchors seen yet; the coordinates are those of the tensor itself."""
        rotated = [side if len(sides) > 1 and 1 < side <= LARGEST_SIDE else None for side in sides]
        new = like.new_zeros
        return cls(
            [None if side is None else new(side, side, dtype=torch.float64) for side in rotated],
            [None if side is None else torch.eye(side, dtype=like.dtype, device=like.device) for side in rotated],
            new(tuple(sides), dtype=torch.float64),
        )

    def empty(self) -> "TensorSpectrum":
        """The same coordinates, with no anchors seen."""
        covariances = [None if c is None else torch.zeros_like(c) for c in self.covariances]
        return TensorSpectrum(covariances, list(self.bases), torch.zeros_like(self.energies))

    def absorb(self, new: "TensorSpectrum", kept: float) -> None:
        """Reduce the weight of what was seen so far and add what is new, in the same coordinates."""
        self.energies = kept * self.energies + new.energies
        self.covariances = [
            None if old is None or other is None else kept * old + other
            for old, other in zip(self.covariances, new.covariances, strict=True)
        ]

    def add(self, gradients: Tensor, weight: float) -> None:
        """Add anchor gradients (n × size), each with this weight."""
        for rows in gradients.split(rows_at_once(gradients)):
            self._add(rows, weight)

    def _add(self, gradients: Tensor, weight: float) -> None:
        sides = gradients.reshape(len(gradients), *self.energies.shape)
        for side, covariance in enumerate(self.covariances):
            if covariance is not None:
                rows = sides.movedim(side + 1, 0).flatten(1)
                covariance += weight * (rows @ rows.T).double()
        self.energies += weight * _turned(sides, tuple(self.bases)).square().sum(0).double()

    def packed(self) -> list[Tensor]:
        """All numbers, those of a symmetric matrix once, in float32: what processes add up."""
        triangles = [c[tuple(torch.triu_indices(*c.shape, device=c.device))] for c in self.covariances if c is not None]
        return [numbers.flatten().float() for numbers in (*triangles, self.energies)]

    def unpack(self, numbers: Tensor) -> Tensor:
        """Take the numbers of `packed` from the beginning of a vector, and return the rest of it."""
        for covariance in (c for c in self.covariances if c is not None):
            upper = torch.triu_indices(*covariance.shape, device=numbers.device)
            own, numbers = numbers.tensor_split((upper.shape[1],))
            covariance[tuple(upper)] = own.double()
            covariance.copy_(covariance.triu() + covariance.triu(1).T)
        own, numbers = numbers.tensor_split((self.energies.numel(),))
        self.energies.copy_(own.view_as(self.energies))
        return numbers

    @property
    def is_separable(self) -> bool:
        """Whether the energies are taken as products of one number for each row and one for each column."""
        return self.energies.dim() == 2 and self.energies.numel() > SEPARABLE_ABOVE

    def rotation(self, lowest: float) -> Rotation:
        """The coordinates, with scales (D + lowest)^(1/4)."""
        bases, energies = tuple(self.bases), self.energies.clamp(min=0) + lowest
        if not self.is_separable:
            return Rotation(bases, energies**EXPONENT)
        rows, columns = energies.mean(1), energies.mean(0) / energies.mean()
        return Rotation.separable(bases, (rows**EXPONENT, columns**EXPONENT))

    def turn(self) -> None:
        """Turn the bases to the eigenvectors of the covariances, and the energies with them.

        With O the old basis in coordinates of the new one, the energies become O² D P²ᵀ: exact if entries are
        uncorrelated in the old coordinates, and their total is kept in any case, as the columns of O² sum to 1.
        """
        for side, (covariance, old) in enumerate(zip(self.covariances, self.bases, strict=True)):
            if covariance is None or old is None:
                continue
            # In float64: with few anchors most eigenvalues are zero, and in float32 eigh then may not converge.
            new = torch.linalg.eigh(covariance).eigenvectors.to(old.dtype)
            squares = (new.T @ old).square().double()
            self.energies = torch.movedim(torch.movedim(self.energies, side, -1) @ squares.T, -1, side)
            self.bases[side] = new


class TrackedSpectrum(Subspace):
    """Coordinates that follow the training: running means with forgetting, updated with a few new anchors per refresh.

    Args:
        shapes: The shapes of the parameters, in the order of a flat gradient.
        num_anchors: Public records per refresh.
        decay: Share of the running means that a step keeps; 0.95 averages over about 20 steps.
        refresh_every: Steps from one refresh to the next. The coordinates turn at every refresh.
        floor: Smallest energy of a direction, as a share of the mean energy. It keeps directions that public data
            does not excite from being scaled up without limit.
        precondition: Keep the scaling by 1/d in the update.

    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        *,
        num_anchors: int,
        decay: float = 0.95,
        refresh_every: int = 1,
        floor: float = 0.01,
        precondition: bool = False,
    ) -> None:
        sides = [sides_of(shape) for shape in shapes.values()]
        super().__init__([math.prod(side) for side in sides], [0] * len(sides), refresh_every=refresh_every)
        self.num_anchors = positive_integer("num_anchors", num_anchors, "It is the number of public records each time.")
        self.decay, self.floor, self.precondition = decay, floor, precondition
        self._sides = sides
        self._spectra: list[TensorSpectrum] = []

    def _refresh(self, step: int, anchors: Anchors) -> Basis | None:
        kept = self.decay ** max(1, step - self._refreshed_at)
        if not self._spectra:
            # The energies need a basis to be measured in, so the first refresh sweeps the anchors twice.
            self._spectra = self._seen(anchors, 1.0)
            self._turn()
            self._spectra = [spectrum.empty() for spectrum in self._spectra]
        seen = self._seen(anchors, (1 - kept) / self.num_anchors)
        for spectrum, new in zip(self._spectra, seen, strict=True):
            spectrum.absorb(new, kept)
        self._turn()
        return self._basis() if self._spectra else None

    def _seen(self, anchors: Anchors, weight: float) -> list[TensorSpectrum]:
        """Sums over the anchors of all processes, in the coordinates as they are."""
        spectra = [spectrum.empty() for spectrum in self._spectra]
        for gradients in anchors():
            if not spectra:
                spectra = [TensorSpectrum.zero(sides, gradients) for sides in self._sides]
            with full_precision(gradients.device):
                usable = torch.linalg.vector_norm(gradients, dim=1) < LONGEST_ANCHOR
                parts = (gradients if bool(usable.all()) else gradients[usable]).split(self.sizes, dim=1)
                for spectrum, part in zip(spectra, parts, strict=True):
                    spectrum.add(part, weight)
        if self.exchange.world_size > 1 and spectra:
            total = self.exchange.sum(torch.cat([part for spectrum in spectra for part in spectrum.packed()]))
            for spectrum in spectra:
                total = spectrum.unpack(total)
        return spectra

    def _turn(self) -> None:
        for spectrum in self._spectra:
            spectrum.turn()

    def _basis(self) -> SpectralBasis:
        """Scales d = (D + floor)^(1/4), in units in which their mean square is 1: then d = 1 is DP-SGD."""
        total = sum(float(spectrum.energies.sum()) for spectrum in self._spectra)
        lowest = self.floor * total / sum(self.sizes) or 1.0
        rotations = [spectrum.rotation(lowest) for spectrum in self._spectra]
        unit = math.sqrt(sum(float(rotation.scales.square().sum()) for rotation in rotations) / sum(self.sizes))
        rotations = [rotation.in_units(unit, self._dtype) for rotation in rotations]
        none = rotations[0].scales.new_empty(0, sum(self.sizes))
        return SpectralBasis((none,), 0.0, tuple(rotations), self.precondition)

    @property
    def _dtype(self) -> torch.dtype:
        bases = [basis for spectrum in self._spectra for basis in spectrum.bases if basis is not None]
        return bases[0].dtype if bases else torch.float32

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps; all of it is public."""
        return {
            "spectra": [vars(spectrum) for spectrum in self._spectra],
            "refreshed_at": self._refreshed_at,
        }

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether the state belongs to the same parameters."""
        spectra = state.get("spectra", ())
        return [tuple(spectrum["energies"].shape) for spectrum in spectra] == self._sides

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        # The running means change in place, and the state may be held by a checkpoint.
        self._spectra = [TensorSpectrum(**copy.deepcopy(spectrum)) for spectrum in state["spectra"]]
        self._refreshed_at = state["refreshed_at"]
        self.basis = self._basis()


def rows_at_once(gradients: Tensor) -> int:
    """How many rows of gradients (n × size) are turned together."""
    most = NUMBERS_AT_ONCE // max(1, gradients.shape[1]) if gradients.device.type == "cpu" else len(gradients)
    return max(1, most)


def sides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """The sides along which a tensor is rotated: channels out, channels in, and the kernel of a convolution as one."""
    return (*shape[:2], math.prod(shape[2:])) if len(shape) > 2 else tuple(shape) or (1,)


def turned_from_the_right(tensors: Tensor, basis: Tensor | None = None) -> Tensor:
    """The last side of n × … × side in the coordinates of a basis."""
    if basis is None:
        return tensors
    basis, (count, *positions, side) = basis.to(tensors), tensors.shape
    if _by_convolution(tensors, side, math.prod(positions)):
        channels_last = tensors.reshape(count, -1, 1, side).permute(0, 3, 1, 2)
        return conv2d(channels_last, basis.T[:, :, None, None]).permute(0, 2, 3, 1).reshape(tensors.shape)
    return (tensors.reshape(-1, side) @ basis).view(tensors.shape)


def turned_from_the_left(tensors: Tensor, basis: Tensor | None) -> Tensor:
    """The first side of n × side × … in the coordinates of a basis."""
    if basis is None:
        return tensors
    basis, rows = basis.to(tensors), tensors.flatten(2)
    if _by_convolution(tensors, *rows.shape[1:]):
        return conv1d(rows, basis.T[:, :, None]).view(tensors.shape)
    return (basis.T @ rows).view(tensors.shape)


def _by_convolution(tensors: Tensor, side: int, positions: int) -> bool:
    fast = tensors.device.type == "cpu" and tensors.dtype == torch.float32 and bool(torch.backends.mkldnn.enabled)
    return fast and side >= LONG_SIDE and positions in POSITIONS


def _turned(tensors: Tensor, bases: Sequence[Tensor | None]) -> Tensor:
    """Contract side i of every tensor (n × side₁ × side₂ …, up to three sides) with the columns of basis i."""
    out, *inside = bases
    if len(inside) == 2:  # channels last: one large product, where their own place takes many small ones
        channels, kernel = inside
        if kernel is not None and len(kernel) >= min(LARGE_KERNEL, tensors.shape[2]):
            tensors, kernel = turned_from_the_right(tensors, kernel), None
        turned = turned_from_the_right(tensors.mT, channels)
        turned = turned if kernel is None else kernel.to(turned).T @ turned
        return turned_from_the_left(turned, out).mT
    return turned_from_the_left(turned_from_the_right(tensors, *inside), out)
