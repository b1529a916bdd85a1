"""The least a step of GEP can cost: plain gradients of its records, and its matrix products at full speed."""

import time

import torch

from benchmarks.settings import Setting


def matmul_speed(setting: Setting, seconds: float = 2.0) -> float:
    """Multiplications and additions a second of a product like those of the projection, the best of several."""
    groups = setting.groups()
    p, k = max(zip(groups.sizes, groups.quotas(setting.k), strict=True))
    gradients, basis = torch.randn(setting.microbatch, p), torch.randn(k, p)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        gradients @ basis.T
        best = max(best, 2 * setting.microbatch * k * p / (time.perf_counter() - start))
    return best


def projection_multiplications(setting: Setting) -> float:
    """2·n·Σkᵢpᵢ: the embeddings of n records."""
    return 2.0 * setting.n * setting.basis_entries


def update_multiplications(anchors: int, k: int, p: int) -> float:
    """Of one refresh of a tracked block with k rows: coordinates and rest of the anchors, an orthonormal basis of the
    rest, and the reflection that puts it in the place of the directions given up. How orthonormal that is has to be
    measured too, but somebody may find a cheaper way: it is not counted.
    """
    return 8.0 * anchors * k * p + 4.0 * anchors**2 * p


def seconds_at_the_limit(setting: Setting, *, plain: float, speed: float, anchors: int, refresh_every: int) -> float:
    """Seconds of a step: plain training on the step's records and its share of anchors, and the products."""
    groups = setting.groups()
    update = sum(
        update_multiplications(anchors, k, p) for k, p in zip(groups.quotas(setting.k), groups.sizes, strict=True)
    )
    records = plain * (1 + anchors / refresh_every / setting.n)
    return records + (projection_multiplications(setting) + update / refresh_every) / speed
