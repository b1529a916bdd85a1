"""Per-sample gradients of the loss of any training step."""

from lightning_gep.gradients.batches import batch_size, microbatches, take
from lightning_gep.gradients.choice import choose_backend
from lightning_gep.gradients.interface import Backend, GradientError, LossFunction
from lightning_gep.gradients.state import untouched

__all__ = [
    "Backend",
    "GradientError",
    "LossFunction",
    "batch_size",
    "choose_backend",
    "microbatches",
    "take",
    "untouched",
]
