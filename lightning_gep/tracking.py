"""The default subspace: incremental principal components with forgetting, so a few new anchors a step are enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_gep.basis import full_precision
from lightning_gep.checks import positive_integer
from lightning_gep.errors import ConfigurationError
from lightning_gep.orthonormal import orthonormalise, polish, rescaled, scale_of
from lightning_gep.subspace import Anchors, Subspace, finite_parts


@dataclass
class TrackedBlock:
    """Principal directions of one group with their energies (eigenvalues of the averaged gradient covariance)."""

    rows: Tensor
    energies: Tensor
    defect: float = 0.0

    def absorb(self, gradients: Tensor, *, weight: float, quota: int) -> None:
        """Add weight·GᵀG to the covariance and keep its `quota` leading directions.

        The new gradients are split into what the rows span and the rest; the rest gets an orthonormal basis Q of its
        own. In the coordinates of [rows; Q], which are orthonormal, the covariance is a small matrix, and its
        eigenvectors rotate [rows; Q] to the new rows. A rotation amplifies no rounding, unlike scaling by the inverse
        roots of the energies. What rounding there is stays until `settle`.
        """
        scale = scale_of(gradients)
        if scale == 0.0:
            return
        gradients = rescaled(gradients, scale)
        inside, outside = _split(gradients, self.rows)
        directions, _ = orthonormalise(outside)
        coordinates = torch.cat([inside, outside @ directions.T], dim=1).double()
        covariance = weight * scale**2 * (coordinates.T @ coordinates)
        covariance.diagonal()[: len(self.energies)] += self.energies
        energies, vectors = torch.linalg.eigh(covariance)
        energies, vectors = energies.flip(0)[:quota], vectors.flip(1)[:, :quota]
        kept = energies > energies[0] * torch.finfo(torch.float64).eps * len(covariance)
        rotation = vectors[:, kept].T.to(gradients.dtype)
        old = len(self.rows)
        self.rows = torch.addmm(rotation[:, :old] @ self.rows, rotation[:, old:], directions)
        self.energies = energies[kept]

    def settle(self) -> None:
        """Make the rows orthonormal to rounding, and measure how far they are from it: once a refresh."""
        self.rows, self.defect = polish(self.rows)


class TrackedSubspace(Subspace):
    """B and its spectrum λ carried from refresh to refresh: λ fades, then the new anchors' covariance is added.

    The fading is `decay` a step, whatever the steps between refreshes: after s steps λ ← decay^s·λ, and `num_anchors`
    new anchors weigh (1 − decay^s) together. So the covariance is a running mean over about 1/(1 − decay) steps.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        quotas: Sequence[int],
        *,
        num_anchors: int,
        decay: float = 0.98,
        refresh_every: int = 1,
    ) -> None:
        super().__init__(sizes, quotas, refresh_every=refresh_every)
        positive_integer(
            "num_anchors", num_anchors, "It is the number of public records each refresh looks at, e.g. 50."
        )
        if not 0 <= decay < 1:
            raise ConfigurationError(
                f"decay must be at least 0 and below 1, but it is {decay!r}. Use 0.98 to remember about 50 steps."
            )
        self.num_anchors, self.decay = num_anchors, decay
        self._blocks: list[TrackedBlock] = []

    def _refresh(self, step: int, anchors: Anchors) -> list[tuple[Tensor, float]]:
        kept = self.decay ** max(1, step - self._refreshed_at)
        for block in self._blocks:
            block.energies = block.energies * kept
        for gradients in anchors():
            if not self._blocks:
                self._blocks = [_empty_block(size, gradients) for size in self.sizes]
            with full_precision(gradients.device):
                parts = finite_parts(gradients, self.sizes)
                for block, part, quota in zip(self._blocks, parts, self.quotas, strict=True):
                    block.absorb(part, weight=(1 - kept) / self.num_anchors, quota=quota)
        for block in self._blocks:
            block.settle()
        return [(block.rows, block.defect) for block in self._blocks]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps; all of it is public."""
        return {**super().state_dict(), "energies": [block.energies for block in self._blocks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        super().load_state_dict(state)
        assert self.basis is not None
        self._blocks = [
            TrackedBlock(rows, energies, self.basis.defect)
            for rows, energies in zip(self.basis.blocks, state["energies"], strict=True)
        ]


def _split(gradients: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of the gradients in `rows`, and the rest, projected twice so that rounding leaves it orthogonal.

    A rest that is rounding alone is set to zero: normalised, it would be a direction inside the rows' own span.
    """
    inside = gradients @ rows.T
    outside = gradients - inside @ rows
    again = outside @ rows.T
    outside -= again @ rows
    rounding = 32 * torch.finfo(gradients.dtype).eps * torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    is_rounding = torch.linalg.vector_norm(outside, dim=1, keepdim=True) <= rounding
    return inside + again, torch.where(is_rounding, 0.0, outside)


def _empty_block(size: int, like: Tensor) -> TrackedBlock:
    return TrackedBlock(like.new_empty(0, size), like.new_empty(0, dtype=torch.float64))
