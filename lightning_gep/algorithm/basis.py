"""The orthonormal basis of the anchor subspace, and products with it whose rounding errors are bounded."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_gep.algorithm.linalg import column_blocks, gram, spectral_defect
from lightning_gep.errors import ConfigurationError

PRODUCT_LENGTH = 512
"""Columns multiplied at a time in the gradients' own precision; these partial products are added in float64."""


class FactoredRows(Protocol):
    """Per-sample gradients of some records as factors: their norms and weighted sums are known without forming them."""

    @property
    def forms_rows(self) -> bool:
        """Whether there is room for the gradients themselves."""

    def __len__(self) -> int: ...

    def coordinates(self, rotations: Sequence[Any] = ()) -> Tensor:
        """The gradients (n × p), or their coordinates by the rotation of every tensor."""

    def norms(self, rotations: Sequence[Any] = ()) -> Tensor:
        """At least the norm of each record's gradient, or of its coordinates by the rotation of every tensor."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ weightᵢ·gᵢ in float64 (p)."""


@dataclass(frozen=True)
class Basis:
    """B of the paper, one block per parameter group (kᵢ × pᵢ); an embedding is the concatenation over the groups.

    `defect` is τ ≥ ‖BBᵀ−I‖₂, measured in float64: the rows are orthonormal only up to rounding, and clipping has to
    account for that.
    """

    blocks: tuple[Tensor, ...]
    defect: float

    def __post_init__(self) -> None:
        if any(block.dtype not in (torch.float32, torch.float64) for block in self.blocks):
            raise ConfigurationError(
                f"A basis must be float32 or float64, not {self.blocks[0].dtype}: the rounding of less precise numbers "
                "has no useful bound. Convert the gradients first."
            )

    @classmethod
    def joined(cls, parts: Sequence[tuple[Tensor, float]]) -> "Basis":
        """A basis from the blocks of all groups, each with its measured defect."""
        return cls(tuple(block for block, _ in parts), max(defect for _, defect in parts))

    @classmethod
    def of(cls, blocks: Sequence[Tensor]) -> "Basis":
        """A basis from given blocks, with its defect measured."""
        return cls(tuple(blocks), max(spectral_defect(gram(block), block.shape[1]) for block in blocks))

    @classmethod
    def empty(cls, num_parameters: int, like: Tensor) -> "Basis":
        """No basis vectors at all: every gradient is its own residual, which makes GEP ordinary DP-SGD."""
        return cls((like.new_empty(0, num_parameters),), 0.0)

    @cached_property
    def dimensions(self) -> tuple[int, ...]:
        """Basis vectors of each group (kᵢ)."""
        return tuple(block.shape[0] for block in self.blocks)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Parameters of each group (pᵢ)."""
        return tuple(block.shape[1] for block in self.blocks)

    @property
    def dimension(self) -> int:
        """Number of basis vectors (k)."""
        return sum(self.dimensions)

    @property
    def num_parameters(self) -> int:
        """Length of a flat gradient (p)."""
        return sum(self.sizes)

    @property
    def unit_noise(self) -> float:
        """The expected energy of noise of variance 1 on a residual, without what lies in the subspace."""
        return float(self.num_parameters - self.dimension)

    def coordinates(self, gradients: Tensor) -> Tensor:
        """What is projected and clipped in the place of per-sample gradients (n × p): here the gradients themselves."""
        return gradients

    def formed(self, gradients: FactoredRows) -> Tensor:
        """The coordinates of gradients that are given as factors (n × p)."""
        return gradients.coordinates()

    def norms(self, gradients: FactoredRows) -> Tensor:
        """At least the norm of the coordinates of each record."""
        return gradients.norms()

    def gradient(self, values: Tensor) -> Tensor:
        """The gradient that belongs to a noisy vector of such coordinates."""
        return values

    def to(self, device: torch.device) -> "Basis":
        """The same basis on another device."""
        return replace(self, blocks=tuple(block.to(device) for block in self.blocks))

    def embed(self, gradients: Tensor) -> Tensor:
        """W = GBᵀ in float64 (n × k) for gradients n × p, within `embedding_error` of the exact product."""
        with full_precision(gradients.device):
            embeddings = []
            for block, columns in zip(self.blocks, gradients.split(self.sizes, dim=1), strict=True):
                embedding = gradients.new_zeros(len(gradients), len(block), dtype=torch.float64)
                product = gradients.new_empty(len(gradients), len(block))
                if len(block):
                    for own, rows in zip(
                        columns.split(PRODUCT_LENGTH, dim=1), block.split(PRODUCT_LENGTH, dim=1), strict=True
                    ):
                        embedding += torch.mm(own, rows.T, out=product)
                embeddings.append(embedding)
            return torch.cat(embeddings, dim=1)

    def embedding_error(self, gradient_norms: Tensor) -> Tensor:
        """A bound on the norm of each row's rounding error in `embed`, given the rows' norms.

        A dot product of length L is off by at most γ_L·|g|·|b|, γ_L = Lu/(1−Lu), in any order of summation (Higham
        2002, section 3.1), so an embedding coordinate by γ_L‖g‖‖b‖ for partial products of length L, and kᵢ
        coordinates by √kᵢ times that. A product that underflows loses at most the smallest normal number.
        """
        info = torch.finfo(self.blocks[0].dtype)
        length = min(PRODUCT_LENGTH, max(self.sizes))
        unit = info.eps / 2
        gamma = length * unit / (1 - length * unit)
        float64 = 2 * (self.num_parameters / PRODUCT_LENGTH + 1) * torch.finfo(torch.float64).eps
        root = (max(self.dimensions) * (1 + self.defect)) ** 0.5
        return root * ((gamma + float64) * gradient_norms + self.num_parameters * info.tiny)

    def expand(self, embedding: Tensor) -> Tensor:
        """wB in float64 for one embedding: exact enough to be subtracted before any noise is added."""
        expanded = embedding.new_empty(self.num_parameters, dtype=torch.float64)
        coordinates = embedding.double().split(self.dimensions)
        for block, own, part in zip(self.blocks, coordinates, expanded.split(self.sizes), strict=True):
            for columns, wide in column_blocks(block):
                torch.mv(wide.T, own, out=part[columns])
        return expanded


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute products and convolutions in the operands' own precision: no autocast, no TF32, no bfloat16.

    The error bounds rest on it. The user's global settings are restored on exit.
    """
    backends: Any = torch.backends
    # By default cuDNN computes convolutions in TF32. Versions of PyTorch before 2.9 have one switch, for cuDNN.
    parts = [getattr(library, "conv", None) for library in (backends.cudnn, backends.mkldnn)]
    new = [(part, "fp32_precision", "ieee") for part in parts]
    switches: list[tuple[Any, str, Any]] = new if all(parts) else [(backends.cudnn, "allow_tf32", False)]
    with ExitStack() as restored:
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:  # PyTorch has two APIs for products, and mixing them raises an error
            switches += [(library.matmul, "fp32_precision", "ieee") for library in (backends.cuda, backends.mkldnn)]
        else:
            restored.callback(torch.set_float32_matmul_precision, before)
            torch.set_float32_matmul_precision("highest")
        for owner, name, exact in switches:
            restored.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, exact)
        restored.enter_context(torch.autocast(device.type if device.type != "meta" else "cpu", enabled=False))
        yield
