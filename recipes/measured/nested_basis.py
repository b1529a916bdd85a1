"""One large basis that contains the bases of all smaller k: computing one for every k would take hours."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis, full_precision
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.linalg import orthonormalise
from lightning_gep.algorithm.subspace import Anchors, RandomSubspace, finite_rows, random_rows
from lightning_gep.errors import ConfigurationError


@dataclass(frozen=True)
class NestedBasis:
    """A basis, and rotations of its coordinates after which the first ones belong to a smaller basis.

    `turns` has, for each way, one rotation per group, or None where none is needed.
    """

    basis: Basis
    turns: dict[str, list[Tensor | None]]

    def turned(self, embeddings: Tensor) -> dict[str, list[Tensor]]:
        """For each way the coordinates (n × kᵢ) of each group; the first q are those on its basis of q vectors."""
        parts = embeddings.split(self.basis.dimensions, dim=1)
        return {
            way: [part if turn is None else part @ turn for part, turn in zip(parts, turns, strict=True)]
            for way, turns in self.turns.items()
        }


def cold_start(anchors: Anchors, groups: ParameterGroups, ks: Sequence[int], seed: int) -> NestedBasis:
    """The paper's basis, one power iteration from random rows, for all k at once.

    - "power" is the paper's: a power iteration maps each random row by itself, so the first q rows of the product are
      what it gives from the first q random rows. Their span is that of the first q rows made orthonormal in order.
    - "principal" has the q directions of most energy in the product of all rows.

    Directions below the rounding of the product are left out, as they are in training.
    """
    products = _power_products(anchors, groups.sizes, largest_quotas(groups, ks), seed)
    blocks: list[Tensor] = []
    defects: list[float] = []
    turns: list[Tensor | None] = []
    while products:  # freed one by one: each is as large as the block it becomes
        product = products.pop(0)
        block, defect = orthonormalise(product)
        turns.append(torch.linalg.qr(Basis((block,), defect).embed(product).T).Q)
        blocks.append(block)
        defects.append(defect)
        del product
    return NestedBasis(Basis(tuple(blocks), max(defects)), {"power": turns, "principal": [None] * len(blocks)})


def random_basis(groups: ParameterGroups, ks: Sequence[int], seed: int) -> NestedBasis:
    """Random directions, of which the first ones serve a smaller k."""
    basis = RandomSubspace(groups.sizes, largest_quotas(groups, ks)).at_step(seed, lambda: [torch.empty(0)])
    return NestedBasis(basis, {"random": [None] * len(basis.blocks)})


def largest_quotas(groups: ParameterGroups, ks: Sequence[int]) -> tuple[int, ...]:
    """The largest quota of each group over all k; by rounding, a larger k can have a smaller quota."""
    return tuple(max(quotas) for quotas in zip(*(groups.quotas(k) for k in ks), strict=True))


def _power_products(anchors: Anchors, sizes: Sequence[int], quotas: Sequence[int], seed: int) -> list[Tensor]:
    """(G_aΩᵀ)ᵀG_a of each group for random rows Ω. Two sweeps, to hold either Ω or the products."""
    products: list[Tensor] = []
    for embeddings, gradients in zip(_random_embeddings(anchors, sizes, quotas, seed), anchors(), strict=True):
        parts = finite_rows(gradients).split(tuple(sizes), dim=1)
        with full_precision(gradients.device):
            if products:
                for product, embedding, part in zip(products, embeddings, parts, strict=True):
                    product.addmm_(embedding.T, part)
            else:
                products = [embedding.T @ part for embedding, part in zip(embeddings, parts, strict=True)]
        del gradients, parts  # free them before the next ones are computed
    if not products:
        raise ConfigurationError("There are no anchor gradients to find a subspace in. Give some public records.")
    return products


def _random_embeddings(
    anchors: Anchors, sizes: Sequence[int], quotas: Sequence[int], seed: int
) -> list[tuple[Tensor, ...]]:
    """G_aΩᵀ of each group and microbatch."""
    rows: list[Tensor] = []
    embeddings = []
    for gradients in anchors():
        rows = rows or random_rows(seed, quotas, sizes, gradients)
        with full_precision(gradients.device):
            parts = zip(finite_rows(gradients).split(tuple(sizes), dim=1), rows, strict=True)
            embeddings.append(tuple(part @ block.T for part, block in parts))
        del gradients, parts
    return embeddings
