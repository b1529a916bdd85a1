"""`python -m benchmarks.cost_model`: what docs/scaling.md predicts for networks that have not been measured here."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torchvision.models import resnet50, vit_b_16

from benchmarks.limit import update_multiplications
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.spectral import LARGEST_SIDE, sides_of
from lightning_gep.strategy.settings import STEPS_BETWEEN_SUMS

NETWORK, PRODUCTS, PER_SAMPLE = 125e12, 14e12, 1.4
"""Operations a second of an A100: passes in bfloat16, products in float32; per-sample gradients against plain ones."""
LINKS = {8: 200e9, 64: 20e9}
"""Bytes a second that one GPU sends to its neighbours: inside a node, and between nodes."""
ANCHORS, K = 50, 1000


@dataclass(frozen=True)
class Network:
    """What a step costs depends on this alone."""

    name: str
    groups: ParameterGroups
    operations: float
    """Of a forward and backward pass of one record."""
    records: int

    @property
    def covariances(self) -> int:
        """Numbers in the triangles of all covariances."""
        sides = (side for shape in self.groups.shapes.values() for side in rotated(sides_of(shape)))
        return sum(side * (side + 1) // 2 for side in sides)

    @property
    def rotation(self) -> int:
        """Operations that rotate one gradient."""
        shapes = map(sides_of, self.groups.shapes.values())
        return sum(2 * torch.Size(sides).numel() * sum(rotated(sides)) for sides in shapes)

    def payload(self, mechanism: str) -> float:
        """Bytes a step: what is added up, and half of what is gathered, which is sent once and not twice."""
        p = self.groups.num_parameters
        basis = {"gp": 0.0, "gep": ANCHORS * p / 2, "spectral": (p + self.covariances) / STEPS_BETWEEN_SUMS}[mechanism]
        return 4 * (p + K * (mechanism == "gep") + basis)

    def basis_bytes(self, mechanism: str) -> float:
        """Memory of the basis of a process."""
        if mechanism == "gep":
            return 4.0 * sum(k * p for k, p in zip(self.groups.quotas(K), self.groups.sizes, strict=True))
        sides = [side for shape in self.groups.shapes.values() for side in rotated(sides_of(shape))]
        spectrum = 12 * self.groups.num_parameters + 12 * sum(side**2 for side in sides)
        return float(spectrum) if mechanism == "spectral" else 0.0

    def seconds(self, mechanism: str, world_size: int) -> float:
        """Of a step, with nothing done at the same time as something else."""
        anchors = ANCHORS * (mechanism != "gp")
        own = (self.records + anchors) / world_size
        products = own * self.rotation if mechanism == "spectral" else 0.0
        if mechanism == "gep":
            blocks = list(zip(self.groups.quotas(K), self.groups.sizes, strict=True))
            products = 2 * self.records / world_size * sum(k * p for k, p in blocks)
            products += sum(update_multiplications(ANCHORS, k, p) for k, p in blocks)
        sent = 2 * (world_size - 1) / world_size * self.payload(mechanism)
        return own * PER_SAMPLE * self.operations / NETWORK + products / PRODUCTS + sent / LINKS[world_size]


def rotated(sides: tuple[int, ...]) -> list[int]:
    """The sides of a tensor that have a basis."""
    return [side for side in sides if len(sides) > 1 and 1 < side <= LARGEST_SIDE]


class LowRank(nn.Module):
    """What trains in LoRA of rank 8 on queries (2048) and values (512) of a layer of width 2048."""

    def __init__(self) -> None:
        super().__init__()
        sides = ((2048, 8), (8, 2048), (2048, 8), (8, 512))
        self.layers = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in sides)


def networks() -> list[Network]:
    """Batches of 4096 images of 224 × 224, and of 1024 texts of 128 tokens: a frozen weight takes 4 operations."""
    with torch.device("meta"):
        modules: Mapping[str, nn.Module] = {"ResNet-50": resnet50(), "ViT-B/16": vit_b_16()}
        low_rank = nn.ModuleList(LowRank() for _ in range(16))
    groups = {name: ParameterGroups.from_module(module) for name, module in modules.items()}
    return [
        Network("ResNet-50", groups["ResNet-50"], 3 * 8.2e9, 4096),
        Network("ViT-B/16", groups["ViT-B/16"], 3 * 35e9, 4096),
        Network("1 B with LoRA", ParameterGroups.from_module(low_rank), 4 * 1.24e9 * 128, 1024),
    ]


def main() -> None:
    """A row for every network and mechanism."""
    print("| network | p | mechanism | MB a step | of plain DDP | basis, GB | s, 8 GPUs | s, 64 GPUs |")
    print("|---|---|---|---|---|---|---|---|")
    for network in networks():
        p = network.groups.num_parameters
        for mechanism in ("gp", "spectral", "gep"):
            payload, seconds = network.payload(mechanism), [network.seconds(mechanism, size) for size in LINKS]
            figures = f"{payload / 1e6:.1f} | {payload / 4 / p:.2f} | {network.basis_bytes(mechanism) / 1e9:.2f}"
            times = " | ".join(f"{time:.2f}" for time in seconds)
            print(f"| {network.name} | {p / 1e6:.2f} M | {mechanism} | {figures} | {times} |")


if __name__ == "__main__":
    main()
