"""The default subspace: incremental principal components with forgetting, so a few new anchors a step are enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis, full_precision
from lightning_gep.algorithm.linalg import (
    column_blocks,
    largest_overlap,
    nearly_orthonormal,
    overlap_bound,
    polish,
    reflector,
    rescaled,
    rotate,
    rounding_of_rows,
    scale_of,
)
from lightning_gep.algorithm.subspace import Anchors, Subspace, finite_rows
from lightning_gep.arguments import positive_integer, share

LOOSEST = {torch.float32: 1e-4, torch.float64: 1e-9}
"""The largest defect that is let stand. It widens the bound on residual norms less than the rounding of embeddings."""


@dataclass
class TrackedBlock:
    """Directions of one group, and the averaged covariance of the anchors' gradients in their coordinates.

    Which orthonormal rows span the subspace makes no difference to a mechanism that adds the same noise to every
    coordinate, so they are not turned to the principal axes: that would cost k²p multiplications at every refresh.
    """

    storage: Tensor
    """As many rows as there may ever be; the first `len(covariance)` are in use, and are changed in place."""
    covariance: Tensor
    defect: float = 0.0
    """An upper bound on ‖BBᵀ−I‖₂."""

    @property
    def rows(self) -> Tensor:
        """The directions."""
        return self.storage[: len(self.covariance)]

    def absorb(self, gradients: Tensor, *, weight: float) -> None:
        """Add weight·GᵀG to the covariance, and keep as many of its leading directions as there is room for.

        The new gradients are split into what the rows span and the rest; the rest gets an orthonormal basis D of its
        own. In the coordinates of [rows; D], which are orthonormal, the covariance is a small matrix. Its eigenvectors
        with the smallest eigenvalues are the directions to give up, as many as were added: a reflection of that rank
        moves them to the last rows, which are dropped, and costs 4akp multiplications for a new directions.
        """
        scale = scale_of(gradients)
        if scale == 0.0:
            return
        gradients = rescaled(gradients, scale)
        inside, outside = _split(gradients, self.rows)
        directions, defect = new_directions(outside, self.rows)
        coordinates = torch.cat([inside, outside @ directions.T], dim=1).double()
        covariance = weight * scale**2 * (coordinates.T @ coordinates)
        old, room = len(self.covariance), len(self.storage)
        covariance[:old, :old] += self.covariance
        if len(covariance) > room:
            given_up = torch.linalg.eigh(covariance).eigenvectors[:, : len(covariance) - room]
            self._replace(given_up, directions, covariance, defect)
        else:
            self.defect = max(self.defect, defect) + largest_overlap(self.rows, directions)
            self.storage[old : len(covariance)] = directions
            self.covariance = covariance

    def _replace(self, vectors: Tensor, directions: Tensor, covariance: Tensor, defect: float) -> None:
        """Fill the storage with orthonormal rows of what [rows; directions] span without `vectors`, coordinates in it.

        `covariance` and `defect` are those of [rows; directions] and of `directions`. The rows are computed in float64
        and rounded once, so that the defect can be carried over: with N = exact rows + E, ‖NNᵀ−I‖ ≤ δ + 2‖E‖√(1+δ) +
        ‖E‖² where δ was the defect before. How far old and new overlap is measured on the way: the rows are converted
        to float64 once, which is much of the cost.
        """
        room, old = len(self.storage), len(self.covariance)
        wide, factor = reflector(vectors)
        removed = wide[:room] @ factor
        products = covariance.new_zeros(old, len(directions))
        for columns, both in column_blocks(self.rows, directions):
            products.addmm_(both[:old], both[old:].T)
            self.storage[:, columns] = both[:room].addmm_(removed, wide.T @ both, alpha=-1)
        self.defect = max(self.defect, defect) + overlap_bound(products, self.storage.shape[1])
        error = rounding_of_rows(self.storage, reflector_shape=(len(wide), wide.shape[1]), defect=self.defect)
        self.defect += 2 * error * (1 + self.defect) ** 0.5 + error**2
        reflected = covariance - wide @ (factor @ (wide.T @ covariance))
        reflected = reflected - ((reflected @ wide) @ factor) @ wide.T
        self.covariance = reflected[:room, :room]

    def settle(self) -> None:
        """Where the bound on the defect has grown, make the rows orthonormal to rounding and measure it anew."""
        if self.defect > LOOSEST[self.storage.dtype]:
            _, self.defect = polish(self.rows)

    def turn_to_principal_axes(self) -> None:
        """Rows that are the eigenvectors of the covariance, the largest eigenvalue first."""
        energies, vectors = torch.linalg.eigh(self.covariance)
        rotate(self.rows, vectors.flip(1).T)
        self.covariance = energies.flip(0).diag()
        _, self.defect = polish(self.rows)


class TrackedSubspace(Subspace):
    """B and the covariance C in it, carried from refresh to refresh: C fades, then the new anchors' one is added.

    The fading is `decay` a step, whatever the steps between refreshes: after s steps C ← decay^s·C, and `num_anchors`
    new anchors weigh (1 − decay^s) together, in units of their own mean square. So C is a running mean over about
    1/(1 − decay) steps, also while gradients shrink: the long ones of the first steps do not stay for ever.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        quotas: Sequence[int],
        *,
        num_anchors: int,
        decay: float = 0.95,
        refresh_every: int = 1,
    ) -> None:
        super().__init__(sizes, quotas, refresh_every=refresh_every)
        positive_integer(
            "num_anchors", num_anchors, "It is the number of public records each refresh looks at, e.g. 50."
        )
        share("decay", decay, "Use 0.95 to remember about 20 steps.")
        self.num_anchors, self.decay = num_anchors, decay
        self._blocks: list[TrackedBlock] = []

    def _refresh(self, step: int, anchors: Anchors) -> Basis | None:
        # The rows change in place, so no bound holds for an interrupted refresh. There is no basis until it is done: a
        # checkpoint saved in between has none, and the next refresh starts from scratch.
        if self.basis is None:
            self._blocks = []
        self.basis = None
        kept = self.decay ** max(1, step - self._refreshed_at)
        for block in self._blocks:
            block.covariance = block.covariance * kept
        for gradients in map(self.exchange.gather, anchors()):
            if not self._blocks:
                nothing = gradients.new_empty(0, 0, dtype=torch.float64)
                shapes = zip(self.quotas, self.sizes, strict=True)
                self._blocks = [TrackedBlock(gradients.new_empty(shape), nothing) for shape in shapes]
            with full_precision(gradients.device):
                parts = finite_rows(gradients).split(self.sizes, dim=1)
                for block, part in zip(self._blocks, parts, strict=True):
                    share = len(part) / self.num_anchors
                    block.absorb(part, weight=(1 - kept) * share / sum_of_squares(part))
                del gradients, parts, part  # free them before the next microbatch is computed
        for block in self._blocks:
            block.settle()
        return self._joined() if self._blocks else None

    def principal_basis(self) -> Basis:
        """The basis with the directions of most energy first, so that its first rows are one of a smaller k."""
        for block in self._blocks:
            block.turn_to_principal_axes()
        self.basis = self._joined()
        return self.basis

    def _joined(self) -> Basis:
        return Basis.joined([(block.rows, block.defect) for block in self._blocks])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps; all of it is public."""
        return {
            **super().state_dict(),
            "covariances": [block.covariance for block in self._blocks],
            "defects": [block.defect for block in self._blocks],
        }

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether a tracked subspace with the same groups can go on from the state."""
        return "covariances" in state and super().fits(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._blocks = []
        for quota, rows, covariance, defect in zip(
            self.quotas, state["blocks"], state["covariances"], state["defects"], strict=True
        ):
            block = TrackedBlock(rows.new_empty(quota, rows.shape[1]), covariance, defect)
            block.rows.copy_(rows)
            self._blocks.append(block)
        super().load_state_dict({**state, "blocks": [block.rows for block in self._blocks]})


def _split(gradients: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of the gradients in `rows`, and the rest.

    A rest that is rounding alone is set to zero: normalised, it would be a direction inside the rows' own span.
    """
    inside = gradients @ rows.T
    outside = torch.addmm(gradients, inside, rows, alpha=-1)
    rounding = 32 * torch.finfo(gradients.dtype).eps * torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    is_rounding = torch.linalg.vector_norm(outside, dim=1, keepdim=True) <= rounding
    return inside, outside.masked_fill_(is_rounding, 0.0)


def new_directions(outside: Tensor, rows: Tensor) -> tuple[Tensor, float]:
    """An orthonormal basis of the rest, with its defect.

    Where the rest was small beside what it is a rest of, rounding has left too much of the rows in it. So they are
    taken out once more, from directions of unit length, where they are easy to see; what is left is polished once.
    """
    directions = nearly_orthonormal(outside)
    return polish(torch.addmm(directions, directions @ rows.T, rows, alpha=-1))


def sum_of_squares(rows: Tensor) -> float:
    """‖rows‖² in float64; 1 if that is zero."""
    return float(torch.linalg.vector_norm(rows, dtype=torch.float64)) ** 2 or 1.0
