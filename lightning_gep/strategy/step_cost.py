"""What a step with a basis costs beside the gradients of its records, estimated before the first, and why."""

import time
from collections.abc import Callable, Sequence

import torch

from lightning_gep.algorithm.basis import PRODUCT_LENGTH, Basis
from lightning_gep.strategy.settings import CostSettings

MUCH, NOTICEABLE = 4.0, 1.0
"""In units of the gradients of a step, which take 0.8 to 1.4 times a plain step: more than the first is told with the
parts that are more than the second."""
TRACKED, REPEATED = 10, 2
"""Multiplications per anchor and number of the basis: of a tracked basis (four in float32 and three in float64, which
take twice as long), and of others for each sweep."""


def slow_parts(
    cost: CostSettings, blocks: Sequence[tuple[int, int]], *, records: int, per_record: float, product: float
) -> str:
    """Which setting costs how much, if the step takes much longer than its gradients; else an empty string.

    For a basis of `blocks` (kᵢ, pᵢ), by the seconds of a record's gradient and of a multiplication.
    """
    numbers, anchors = sum(k * p for k, p in blocks), cost.anchors * cost.sweeps
    own = TRACKED if cost.subspace == "tracked" else REPEATED
    update = anchors * own * numbers + sum(cost.anchors**2 * p for _, p in blocks)
    gradients = max(records * per_record, 1e-12)
    refresh = (anchors * per_record + update * product) / cost.interval
    parts = (
        (f"projecting on k={sum(k for k, _ in blocks)} vectors", "lower k", records * numbers * product / gradients),
        ("refreshing the basis", f"refresh_every={4 * cost.interval}", refresh / gradients),
    )
    whole = 1.0 + sum(ratio for *_, ratio in parts)
    if whole <= MUCH:
        return ""
    large = [part for part in parts if part[2] > NOTICEABLE]
    figures = ", ".join(f"{what} {ratio:.2g} ×" for what, _, ratio in large)
    fixes = " or ".join(fix for _, fix, _ in large)
    return f"about {whole:.2g} × the time of its gradients: {figures}; {fixes} makes it faster"


def clock_of(device: torch.device) -> Callable[[], float]:
    """On a CPU its own time, which other programs on the machine do not change much."""
    return time.process_time if device.type == "cpu" else time.perf_counter


def seconds_of_product(k: int, rows: int, like: torch.Tensor) -> float:
    """Seconds of a multiplication when so many rows are projected on k vectors, the fastest of three tries."""
    basis, gradients = Basis((like.new_ones(k, PRODUCT_LENGTH),), 0.0), like.new_ones(rows, PRODUCT_LENGTH)
    clock, tries = clock_of(like.device), []
    for _ in range(3):
        start = clock()
        float(basis.embed(gradients).sum())  # waits for the device
        tries.append(clock() - start)
    return min(tries) / (rows * k * PRODUCT_LENGTH)
