"""What clipping did in a step. Functions of private data, so nothing of it is covered by ε."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


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
        """Count one microbatch."""
        self.records += len(finite)
        self.not_finite += (~finite).sum()
        self.clipped_embeddings += (embedding_factors < 1).sum()
        self.clipped_residuals += (residual_factors < 1).sum()
        self.gradient_norms += gradients.sum()
        self.residual_norms += residuals.sum()
        self.squared_gradient_norms += (gradients**2).sum()
        self.squared_residual_norms += (residuals**2).sum()

    def averages(self) -> dict[str, float]:
        """By name, what is told of a step that drew records; nothing of one that drew none."""
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
