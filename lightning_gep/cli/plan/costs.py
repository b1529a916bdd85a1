"""The noise and ε of a run, before any training: from its settings and public sizes.

The numbers come from the same `PrivacyPlan`, calibration and ε curve that a run uses. This module needs neither torch
nor Lightning.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import CURVE_POINTS, EpsilonCurve, epsilon
from lightning_gep.privacy.calibration import noise_multiplier_for
from lightning_gep.privacy.fixed_point import released_bytes
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.settings import PrivacySettings


@dataclass(frozen=True)
class NoisePlan:
    """The ε and the noise of one possible run.

    Noise is the root of the expected squared norm of what is added to the mean gradient, so it has the gradient's
    units. `epsilon` is what the accountant gives after the last step, at or below a target.
    """

    plan: PrivacyPlan
    size: RunSize
    mechanism: str
    k: int | None
    epsilon: float
    private: bool = True
    """False without noise, or where the draws can be repeated (`generator="seeded"`)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The overrides that tell this run from the others it is compared with."""

    @property
    def noise_per_step(self) -> float:
        """√(k(S₁σ₁)² + p(S₂σ₂)²)/n̄; GP: √p·S·σ/n̄, B-GEP: √k·S₁σ₁/n̄.

        An upper bound for GEP: the strategy projects the residual's noise out of the subspace, which leaves p − k of
        its p directions.
        """
        return math.sqrt(sum(self._energies)) / self.size.expected_batch_size

    @property
    def noise_of_mean(self) -> float:
        """Noise of the mean of all steps' gradients: independent noise averages out to noise per step / √steps."""
        return self.noise_per_step / math.sqrt(self.size.steps)

    @property
    def embedding_share(self) -> float:
        """The embedding's share of the noise energy, k(S₁σ₁)² of the sum; 0 for GP, 1 for B-GEP, NaN without noise."""
        return self._energies[0] / sum(self._energies) if sum(self._energies) else math.nan

    @property
    def basis_bytes(self) -> float:
        """Memory of the basis, Σ kᵢpᵢ numbers with kᵢ ∝ √pᵢ; of one group, which is the most, if they are not known."""
        sizes = self.size.group_sizes or (self.size.num_parameters,)
        return 4 * (self.k or 0) * sum(size**1.5 for size in sizes) / sum(size**0.5 for size in sizes)

    @property
    def reduced_bytes(self) -> int:
        """What several processes add up at every step."""
        if self.size.devices == 1:
            return 0
        return released_bytes(self.plan.release, (self.k or 0, self.size.num_parameters), self.size.expected_batch_size)

    def epsilon_over_steps(self, points: Iterable[int] | None = None) -> list[tuple[int, float]]:
        """ε after some numbers of steps (by default about 32 over the run), from the curve that the run reports from.

        That curve rounds up to its next grid point.
        """
        steps = self.size.steps
        stride = max(1, steps // CURVE_POINTS)
        return [(at, self._curve(at)) for at in points or [*range(stride, steps, stride), steps]]

    @cached_property
    def row(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        parts = {"embedding": self.plan.release.embedding, "residual": self.plan.release.residual}
        row: dict[str, Any] = {
            "mechanism": self.mechanism,
            "labels": dict(self.labels),
            "records": self.size.num_records,
            "parameters": self.size.num_parameters,
            "batch_size": self.size.expected_batch_size,
            "epochs": self.size.epochs,
            "steps": self.size.steps,
            "sample_rate": self.plan.sample_rate,
            "k": self.k,
            "basis_bytes": round(self.basis_bytes),
            "gradient_bytes": 4 * self.size.num_parameters,
            "reduced_bytes": self.reduced_bytes,
            "private": self.private,
            "epsilon": self.epsilon,
            "epsilon_by_rdp": epsilon([(self.plan.event, self.size.steps)], self.plan.delta, "rdp"),
            "target_epsilon": self.plan.target_epsilon,
            "delta": self.plan.delta,
            "accountant": self.plan.accountant,
            "noise_multiplier": self.plan.event.noise_multiplier,
            **{f"sigma_{name}": part and part.sigma for name, part in parts.items()},
            **{f"clip_{name}": part and part.clip for name, part in parts.items()},
            "clipping": self.plan.release.clipping,
            "noise_per_step": self.noise_per_step,
            "embedding_share": self.embedding_share,
            "noise_of_mean": self.noise_of_mean,
        }
        if self.plan.target_epsilon is None:
            quarters = self.epsilon_over_steps([-(-self.size.steps * quarter // 4) for quarter in (1, 2, 3)])
            row["epsilon_at_quarters"] = [{"steps": at, "epsilon": value} for at, value in quarters]
        return row

    @cached_property
    def _curve(self) -> EpsilonCurve:
        return EpsilonCurve(self.plan.event, self.plan.delta, self.plan.accountant, self.plan.planned_steps)

    @property
    def _energies(self) -> tuple[float, float]:
        """Expected squared norm of the noise on the sums: of the embedding (k numbers), and of the residual (p)."""
        embedding, residual = self.plan.release.embedding, self.plan.release.residual
        return (
            0.0 if embedding is None else (self.k or 0) * embedding.noise_std**2,
            0.0 if residual is None else self.size.num_parameters * residual.noise_std**2,
        )


def plan_noise(settings: PrivacySettings, size: RunSize, labels: Mapping[str, str] | None = None) -> NoisePlan:
    """The plan of a run with these settings of GEPStrategy.

    Raises ConfigurationError for settings that the strategy would refuse, and for "auto", which is chosen on public
    data only when training starts.
    """
    for name in settings.chosen_on_public_data:
        raise ConfigurationError(
            f"{name}='auto' is chosen on public data when training starts, so its noise cannot be planned. "
            f"Give a number, e.g. {'100' if name == 'k' else '1.0'}.",
            setting=name,
        )

    plan = privacy_plan(settings, size)
    if settings.epsilon is None:
        spent = epsilon([(plan.event, size.steps)], plan.delta, plan.accountant)
    else:
        _, spent = noise_multiplier_for(settings.epsilon, plan.delta, plan.sample_rate, size.steps, plan.accountant)
    private = settings.private and plan.event.noise_multiplier > 0
    k = settings.k if settings.uses_basis else None
    return NoisePlan(plan, size, settings.mechanism, k, spent, private, labels or {})  # type: ignore[arg-type]


def privacy_plan(settings: PrivacySettings, size: RunSize) -> PrivacyPlan:
    """The plan that the strategy would make for a run of this size."""
    return settings.plan(
        num_records=size.num_records,
        batch_size=size.expected_batch_size,
        steps=size.steps,
        num_parameters=size.num_parameters,
    )
