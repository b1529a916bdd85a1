"""What a user tells GEPStrategy, checked at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from lightning_gep.algorithm.groups import Grouping
from lightning_gep.algorithm.noise import make_noise
from lightning_gep.algorithm.subspace import PowerSubspace, RandomSubspace, Subspace
from lightning_gep.algorithm.thresholds import Thresholds
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.arguments import one_of, positive_integer
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.memory import microbatch_for
from lightning_gep.privacy.accounting import make_accountant, power_of_ten_below
from lightning_gep.privacy.calibration import make_mechanism
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import Clipping
from lightning_gep.privacy.variants import Mechanism, Split

Auto = Literal["auto"]
NOTHING_CHOSEN = Thresholds(k=1, clip_embedding=1.0, clip_residual=1.0)
DEFAULT_ANCHORS, DEFAULT_REFRESH = 50, 1
"""Of a tracked subspace: public records of a refresh, and steps from one to the next."""


@dataclass(frozen=True)
class PrivacySettings:
    """The settings that decide the guarantee."""

    epsilon: float | None
    noise_multiplier: float | None
    delta: float | None
    accountant: str
    generator: str
    seed: int
    mechanism: str
    k: int | Auto
    clip_embedding: float | Auto
    clip_residual: float | Auto
    clip_norm: float
    clipping: Clipping
    split: Split

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigurationError(
                f"Give exactly one of epsilon and noise_multiplier, but got epsilon={self.epsilon} and "
                f"noise_multiplier={self.noise_multiplier}. Use epsilon=8.0 to have the noise calibrated."
            )
        if self.k != "auto":
            positive_integer("k", self.k, "It is the number of basis vectors, e.g. 1000, or 'auto'.")
        make_noise(self.generator, self.seed)
        make_accountant(self.accountant)
        self.mechanism_with(NOTHING_CHOSEN)

    @property
    def private(self) -> bool:
        """Whether nobody can repeat the draws."""
        return make_noise(self.generator, self.seed).private

    @property
    def uses_basis(self) -> bool:
        """Whether the mechanism projects on an anchor subspace."""
        return self.mechanism_with(NOTHING_CHOSEN).uses_basis

    def fill_in(self, chosen: Thresholds) -> Thresholds:
        """What was chosen on public data where the user said "auto", and what the user said elsewhere."""
        return Thresholds(
            k=chosen.k if self.k == "auto" else self.k,
            clip_embedding=chosen.clip_embedding if self.clip_embedding == "auto" else self.clip_embedding,
            clip_residual=chosen.clip_residual if self.clip_residual == "auto" else self.clip_residual,
        )

    @property
    def leaves_choices(self) -> bool:
        """Whether something has to be chosen on public data."""
        used = (self.k, self.clip_embedding, *([self.clip_residual] if self.mechanism == "gep" else []))
        return self.uses_basis and "auto" in used

    def mechanism_with(self, chosen: Thresholds) -> Mechanism:
        """The mechanism, with what was chosen on public data."""
        filled = self.fill_in(chosen)
        clips = {
            "gep": {"clip_embedding": filled.clip_embedding, "clip_residual": filled.clip_residual},
            "bgep": {"clip_embedding": filled.clip_embedding},
            "gp": {"clip_norm": self.clip_norm},
        }
        one_of("mechanism", self.mechanism, clips)
        return make_mechanism(self.mechanism, clipping=self.clipping, split=self.split, **clips[self.mechanism])

    def plan(
        self,
        chosen: Thresholds,
        *,
        num_records: int,
        batch_size: int,
        steps: int | None,
        num_parameters: int,
        noise_multiplier: float | None = None,
    ) -> PrivacyPlan:
        """The plan of a run; a given `noise_multiplier` takes the place of a calibration."""
        return PrivacyPlan.make(
            self.mechanism_with(chosen),
            num_records=num_records,
            expected_batch_size=batch_size,
            delta=power_of_ten_below(1 / num_records) if self.delta is None else self.delta,
            epsilon=self.epsilon if noise_multiplier is None else None,
            noise_multiplier=self.noise_multiplier if noise_multiplier is None else noise_multiplier,
            steps=steps,
            k=self.fill_in(chosen).k if self.uses_basis else None,
            num_parameters=num_parameters,
            accountant=self.accountant,
        )


@dataclass(frozen=True)
class CostSettings:
    """The settings that decide how much work a step is and how good the subspace, but not the guarantee."""

    groups: Grouping
    subspace: str
    num_anchors: int | None
    refresh_every: int
    decay: float
    power_iterations: int
    microbatch_size: int | Auto
    gradients: str
    aux_dataloader: DataLoader[Any] | Callable[[], DataLoader[Any]] | None

    def __post_init__(self) -> None:
        one_of("subspace", self.subspace, ("tracked", "power", "random"))
        one_of("gradients", self.gradients, ("auto", "functional", "hooks", "loop"))
        if self.microbatch_size != "auto":
            positive_integer(
                "microbatch_size", self.microbatch_size, "It is the number of records at a time, or 'auto'."
            )
        self.subspace_for((1,), (1,))

    @property
    def anchors(self) -> int:
        """Anchors of a refresh: the paper's 2000 from a cold start, a few for a basis that remembers."""
        return (2000 if self.subspace == "power" else DEFAULT_ANCHORS) if self.num_anchors is None else self.num_anchors

    def anchors_due(self, k: int, *, filling: bool) -> int:
        """Anchors of the next refresh; the first one of a basis that remembers has to fill it."""
        return max(self.anchors, k) if filling and self.subspace == "tracked" else self.anchors

    @property
    def sweeps(self) -> int:
        """How often a refresh looks at each of its anchors."""
        return self.power_iterations if self.subspace == "power" else 1

    def subspace_for(self, sizes: tuple[int, ...], quotas: tuple[int, ...]) -> Subspace:
        """The source of the basis."""
        positive_integer("num_anchors", self.anchors, "It is the number of public records each refresh looks at.")
        if self.subspace == "tracked":
            return TrackedSubspace(
                sizes, quotas, num_anchors=self.anchors, decay=self.decay, refresh_every=self.refresh_every
            )
        if self.subspace == "power":
            return PowerSubspace(sizes, quotas, iterations=self.power_iterations, refresh_every=self.refresh_every)
        return RandomSubspace(sizes, quotas, refresh_every=self.refresh_every)

    def microbatch_on(self, device: torch.device, num_parameters: int) -> int:
        """Records whose gradients are held at a time: as given, or what fits."""
        return microbatch_for(num_parameters, device) if self.microbatch_size == "auto" else self.microbatch_size
