"""What the paper plots of a batch of private gradients. Functions of private data: computed on request only."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.clipping import row_norms
from lightning_gep.algorithm.gep import weighted_sum
from lightning_gep.algorithm.linalg import gram


class BatchStatistics:
    """Watches the microbatches of one step go by; holds their sum and a few numbers, never the gradients."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._stable_rank: float | None = None

    def watch(self, gradients: Iterable[Tensor]) -> Iterator[Tensor]:
        """The same microbatches, seen on their way."""
        for microbatch in gradients:
            self._see(microbatch)
            yield microbatch

    def _see(self, gradients: Tensor) -> None:
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
