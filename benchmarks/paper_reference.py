"""The algorithm as it was published, written down plainly: everything is held, and everything is formed."""

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_gep.algorithm.groups import ParameterGroups

Gradients = Callable[[Tensor, Tensor], Tensor]
"""Records and labels → their gradients (n × p)."""


class PaperStep:
    """One step of GEP: power iteration from a cold start on all m anchors, Gram–Schmidt, explicit residuals.

    Per-sample gradients are computed by the fastest way there is, a microbatch at a time, so that the comparison is one
    of algorithms; they are then held together, m × p and n × p, as in the authors' code.
    """

    def __init__(
        self,
        gradients: Gradients,
        groups: ParameterGroups,
        k: int,
        *,
        microbatch: int,
        clips: tuple[float, float],
        noise: float,
    ) -> None:
        self.gradients, self.groups, self.microbatch = gradients, groups, microbatch
        self.quotas, self.clips, self.noise = groups.quotas(k), clips, noise

    def __call__(self, anchors: tuple[Tensor, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        """The private gradient."""
        anchor_gradients = self._all_gradients(*anchors).split(self.groups.sizes, dim=1)
        bases = [power_iteration(part, quota) for part, quota in zip(anchor_gradients, self.quotas, strict=True)]
        del anchor_gradients
        gradients = self._all_gradients(*batch)
        parts = gradients.split(self.groups.sizes, dim=1)
        embeddings = [part @ basis.T for part, basis in zip(parts, bases, strict=True)]
        residual = torch.cat([part - w @ basis for part, w, basis in zip(parts, embeddings, bases, strict=True)], dim=1)
        embedding = torch.cat(embeddings, dim=1)
        w, r = (self._clipped_sum(rows, clip) for rows, clip in zip((embedding, residual), self.clips, strict=True))
        w += self.noise * self.clips[0] * torch.randn_like(w)
        r += self.noise * self.clips[1] * torch.randn_like(r)
        inside = [part @ basis for part, basis in zip(w.split([len(b) for b in bases]), bases, strict=True)]
        return (torch.cat(inside) + r) / len(gradients)

    def _all_gradients(self, inputs: Tensor, labels: Tensor) -> Tensor:
        parts = zip(inputs.split(self.microbatch), labels.split(self.microbatch), strict=True)
        return torch.cat([self.gradients(x, y) for x, y in parts])

    @staticmethod
    def _clipped_sum(rows: Tensor, clip: float) -> Tensor:
        factors = (clip / rows.norm(dim=1)).clamp(max=1.0)
        return (factors[:, None] * rows).sum(dim=0)


def power_iteration(anchors: Tensor, k: int) -> Tensor:
    """One power iteration from random directions: orth(GᵀGΩ), as rows."""
    start = torch.randn(min(k, *anchors.shape), anchors.shape[1])
    rows = (anchors @ start.T).T @ anchors
    return gram_schmidt(rows)


def gram_schmidt(rows: Tensor) -> Tensor:
    """Orthonormal rows, one after another."""
    rows = rows.clone()
    for i in range(len(rows)):
        rows[i] /= rows[i].norm()
        if i + 1 < len(rows):
            rest = rows[i + 1 :]
            rest -= torch.outer(rest @ rows[i], rows[i])
    return rows
