"""Statistics of a step's gradients and of what clipping did. Functions of private data, not covered by ε."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis, FactoredRows
from lightning_gep.algorithm.linalg import gram, row_norms, weighted_sum


@dataclass
class Diagnostics:
    """Sums over the records of one step."""

    records: Tensor
    not_finite: Tensor
    clipped_embeddings: Tensor
    clipped_residuals: Tensor
    gradient_norms: Tensor
    residual_norms: Tensor
    squared_gradient_norms: Tensor
    squared_residual_norms: Tensor

    @classmethod
    def zero(cls, device: torch.device) -> "Diagnostics":
        """Nothing seen yet."""
        return cls(*(torch.zeros((), dtype=torch.float64, device=device) for _ in range(8)))

    def add(
        self,
        finite: Tensor,
        gradients: Tensor,
        residuals: Tensor,
        embedding_factors: Tensor,
        residual_factors: Tensor,
    ) -> None:
        """Add one microbatch."""
        self.records += len(finite)
        self.not_finite += (~finite).sum()
        self.clipped_embeddings += (embedding_factors < 1).sum()
        self.clipped_residuals += (residual_factors < 1).sum()
        self.gradient_norms += gradients.sum()
        self.residual_norms += residuals.sum()
        self.squared_gradient_norms += (gradients**2).sum()
        self.squared_residual_norms += (residuals**2).sum()

    def averages(self) -> dict[str, float]:
        """Averages over the step's records by name; empty if no records were drawn."""
        records, energy = float(self.records), float(self.squared_gradient_norms)
        if records == 0:
            return {}
        return {
            "batch_size": records,
            "not_finite": float(self.not_finite),
            "clipped_embeddings": float(self.clipped_embeddings) / records,
            "clipped_residuals": float(self.clipped_residuals) / records,
            "gradient_norm": float(self.gradient_norms) / records,
            "residual_norm": float(self.residual_norms) / records,
            "residual_share": math.sqrt(float(self.squared_residual_norms) / energy) if energy > 0 else 0.0,
        }


class BatchStatistics:
    """Observes the microbatches of one step as they stream by; keeps their sum and a few numbers, not the gradients."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._stable_rank: float | None = None

    def watch(self, gradients: Iterable[Tensor | FactoredRows]) -> Iterator[Tensor | FactoredRows]:
        """Yield the microbatches unchanged, recording each that has gradients."""
        for microbatch in gradients:
            if isinstance(microbatch, Tensor):
                self._record(microbatch)
            elif microbatch.forms_rows:
                self._record(microbatch.coordinates())
            yield microbatch

    def _record(self, gradients: Tensor) -> None:
        finite = torch.isfinite(row_norms(gradients))
        total = weighted_sum(torch.ones_like(finite, dtype=torch.float64), gradients, finite)
        self._sum = total if self._sum is None else self._sum + total
        if self._stable_rank is None and bool(finite.any()):
            energies = torch.linalg.eigvalsh(gram(gradients[finite]))
            self._stable_rank = float(energies.sum() / energies[-1]) if float(energies[-1]) > 0 else 0.0

    def values(self, basis: Basis) -> dict[str, float]:
        """`stable_rank` ‖G‖_F²/‖G‖₂² of the first microbatch, `projection_error` ‖Σr‖/‖Σg‖ over all records."""
        if self._sum is None or self._stable_rank is None:
            return {}
        residual = self._sum - basis.expand(basis.embed(self._sum.to(basis.blocks[0].dtype)[None])[0])
        size = float(self._sum.norm())
        error = float(residual.norm()) / size if size > 0 else 0.0
        return {"stable_rank": self._stable_rank, "projection_error": error}
