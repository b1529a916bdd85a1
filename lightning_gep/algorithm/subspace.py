"""Where the basis comes from: one type for all sources, refreshed every few steps from public anchor gradients."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_gep.algorithm.basis import Basis, full_precision
from lightning_gep.algorithm.exchange import Exchange
from lightning_gep.algorithm.linalg import orthonormalise, rescaled, scale_of
from lightning_gep.arguments import positive_integer
from lightning_gep.errors import ConfigurationError

Anchors = Callable[[], Iterable[Tensor]]
"""A sweep over the anchor gradients in microbatches (m × p); it may be called more than once."""


class BasisSource(Protocol):
    """Whatever has a basis for every step."""

    def at_step(self, step: int, anchors: Anchors) -> Basis:
        """The basis for `step`."""

    @property
    def current(self) -> Basis:
        """The basis of the last step."""


class NoSubspace:
    """The source of an empty basis, which makes the mechanism ordinary DP-SGD."""

    def __init__(self, num_parameters: int, like: Tensor) -> None:
        self._basis = Basis.empty(num_parameters, like)

    def at_step(self, step: int, anchors: Anchors) -> Basis:
        """The empty basis; the anchors are not touched."""
        return self._basis

    @property
    def current(self) -> Basis:
        """The empty basis."""
        return self._basis


class Subspace(ABC):
    """A basis that follows the training.

    The basis depends on public data, public randomness and weights already released, on nothing else: using, reusing
    and keeping it costs no privacy. A refresh gives at most `quotas` rows per group, fewer where the anchors span
    fewer directions.
    """

    exchange = Exchange()
    """How anchors that are divided over processes come together: each sweeps its share, and all get the same basis."""

    def __init__(self, sizes: Sequence[int], quotas: Sequence[int], *, refresh_every: int = 1) -> None:
        positive_integer("refresh_every", refresh_every, "It is the number of steps between two updates of the basis.")
        self.sizes, self.quotas = tuple(sizes), tuple(quotas)
        self.refresh_every = refresh_every
        self.basis: Basis | None = None
        self._refreshed_at = 0
        self._warned = False

    def at_step(self, step: int, anchors: Anchors) -> Basis:
        """The basis for `step`, refreshed first when it is due; otherwise no anchor gradient is computed."""
        if self.basis is None or not 0 <= step - self._refreshed_at < self.refresh_every:
            refreshed = self._refresh(step, anchors)
            if refreshed is None:
                raise ConfigurationError("There are no anchor gradients to find a subspace in. Add public records.")
            self.basis = refreshed
            self._refreshed_at = step
            self._warn_if_short()
        return self.basis

    @property
    def current(self) -> Basis:
        """The basis of the last step."""
        assert self.basis is not None, "there is no basis before the first step"
        return self.basis

    @abstractmethod
    def _refresh(self, step: int, anchors: Anchors) -> Basis | None:
        """A new basis; None if there are no anchors."""

    def _warn_if_short(self) -> None:
        assert self.basis is not None
        if self.basis.dimension < sum(self.quotas) and not self._warned:
            self._warned = True
            warnings.warn(
                f"The anchors span {self.basis.dimension} of the {sum(self.quotas)} directions asked for (k), "
                "so the basis has that many. More anchors, or more varied ones, fill it.",
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps; all of it is public."""
        return {
            "blocks": list(self.current.blocks),
            "defect": self.current.defect,
            "refreshed_at": self._refreshed_at,
        }

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether the state is of a subspace with the same groups, and no more rows than there may be."""
        shapes = [block.shape for block in state.get("blocks", ())]
        same_groups = tuple(columns for _, columns in shapes) == self.sizes
        return same_groups and all(rows <= quota for (rows, _), quota in zip(shapes, self.quotas, strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.basis = Basis(tuple(state["blocks"]), state["defect"])
        self._refreshed_at = state["refreshed_at"]


class RandomSubspace(Subspace):
    """Random directions (the paper's ablation): nothing of the anchors but their device and precision is used."""

    def _refresh(self, step: int, anchors: Anchors) -> Basis | None:
        like = next(iter(anchors()), None)
        if like is None:
            return None
        return Basis.joined([orthonormalise(rows) for rows in random_rows(step, self.quotas, self.sizes, like)])


class PowerSubspace(Subspace):
    """The paper's way: from a cold start, `iterations` of B ← orth((G_aBᵀ)ᵀG_a) over all anchors.

    The anchors stream by in microbatches, once per iteration; only k × p numbers are held.
    """

    def __init__(
        self, sizes: Sequence[int], quotas: Sequence[int], *, iterations: int = 1, refresh_every: int = 1
    ) -> None:
        super().__init__(sizes, quotas, refresh_every=refresh_every)
        self.iterations = positive_integer(
            "iterations", iterations, "It is t, the number of power iterations; the paper uses 1."
        )

    def _refresh(self, step: int, anchors: Anchors) -> Basis | None:
        blocks: list[Tensor] = []
        parts: list[tuple[Tensor, float]] = []
        for iteration in range(self.iterations):
            products = [ScaledSum() for _ in self.sizes]
            for gradients in anchors():
                if iteration == 0 and not blocks:
                    blocks = random_rows(step, self.quotas, self.sizes, gradients)
                with full_precision(gradients.device):
                    columns = finite_rows(gradients).split(self.sizes, dim=1)
                    for product, block, part in zip(products, blocks, columns, strict=True):
                        product.add_power_step(block, part)
                    del gradients, columns, part  # free them before the next microbatch is computed
            if not blocks:
                return None
            for product, block in zip(products, blocks, strict=True):
                product.add_up(block, self.exchange)
            parts = [orthonormalise(product.value(block)) for product, block in zip(products, blocks, strict=True)]
            blocks = [rows for rows, _ in parts]
        return Basis.joined(parts)


class ScaledSum:
    """Σ (GBᵀ)ᵀG over microbatches, in units of the largest entry so far: squares of 1e30 would overflow."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._scale = 0.0

    def add_power_step(self, block: Tensor, gradients: Tensor) -> None:
        """Add one microbatch's part."""
        largest = scale_of(gradients)
        if largest == 0.0:
            return
        if largest > self._scale:
            if self._sum is not None:
                self._sum *= (self._scale / largest) ** 2
            self._scale = largest
        scaled = rescaled(gradients, self._scale)
        embedding = scaled @ block.T
        if self._sum is None:
            self._sum = embedding.T @ scaled
        else:
            self._sum.addmm_(embedding.T, scaled)

    def add_up(self, like: Tensor, exchange: Exchange) -> None:
        """Make it the sum over all processes, in the largest of their units."""
        if exchange.world_size > 1 and (largest := exchange.largest(self._scale)) > 0:
            own = torch.zeros_like(like) if self._sum is None else self._sum.mul_((self._scale / largest) ** 2)
            self._sum, self._scale = exchange.sum(own), largest

    def value(self, block: Tensor) -> Tensor:
        """The sum up to a positive factor; no rows if there was nothing but zeros."""
        return block[:0] if self._sum is None else self._sum


def finite_rows(gradients: Tensor) -> Tensor:
    """The rows without non-finite entries."""
    if torch.isfinite(gradients.sum(dim=1)).all():  # a quick test: finite sums have finite terms
        return gradients
    return gradients[torch.isfinite(gradients).all(dim=1)]


def random_rows(step: int, quotas: Sequence[int], sizes: Sequence[int], like: Tensor) -> list[Tensor]:
    """Gaussian rows for each group; public randomness, so the step itself is the seed, and all ranks agree."""
    generator = torch.Generator().manual_seed(step)
    return [
        torch.randn(quota, size, generator=generator, dtype=like.dtype).to(like.device)
        for quota, size in zip(quotas, sizes, strict=True)
    ]
