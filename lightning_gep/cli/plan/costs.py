"""The noise and ε of a run, before any training: from its settings and public sizes.

The numbers come from the same `PrivacyPlan` and calibration that a run uses. This module needs neither torch nor
Lightning.
"""

import math
from collections.abc import Mapping
from typing import Any

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import epsilon
from lightning_gep.privacy.calibration import noise_multiplier_for
from lightning_gep.privacy.fixed_point import released_bytes
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import Release
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.settings import PrivacySettings

Row = dict[str, Any]
"""The figures of one possible run, as `--json` has them: plain numbers and strings."""


def plan_noise(settings: PrivacySettings, size: RunSize, labels: Mapping[str, str] | None = None) -> Row:
    """The figures of a run with these settings of GEPStrategy; `labels` are the overrides that tell it from others.

    `epsilon` is what the accountant gives after the last step, at or below a target. Raises ConfigurationError for
    settings that the strategy would refuse, and for "auto", which is chosen on public data only when training starts.
    """
    for name in settings.chosen_on_public_data:
        raise ConfigurationError(
            f"{name}='auto' is chosen on public data when training starts, so its noise cannot be planned. "
            f"Give a number, e.g. {'100' if name == 'k' else '1.0'}.",
            setting=name,
        )

    plan = privacy_plan(settings, size)
    release, sigma = plan.release, plan.event.noise_multiplier
    if settings.epsilon is None:
        spent = epsilon([(plan.event, size.steps)], plan.delta, plan.accountant)
    else:
        _, spent = noise_multiplier_for(settings.epsilon, plan.delta, plan.sample_rate, size.steps, plan.accountant)
    k: Any = settings.k if settings.uses_basis else None
    dimensions, batch = (k or 0, size.num_parameters), size.expected_batch_size
    noise = noise_norm(release, dimensions) / batch
    parts = {"embedding": release.embedding, "residual": release.residual}
    return {
        "mechanism": settings.mechanism,
        "labels": dict(labels or {}),
        "records": size.num_records,
        "parameters": size.num_parameters,
        "batch_size": batch,
        "epochs": size.epochs,
        "steps": size.steps,
        "sample_rate": plan.sample_rate,
        "k": k,
        "basis_bytes": round(basis_bytes(k or 0, size.group_sizes or (size.num_parameters,))),
        "gradient_bytes": 4 * size.num_parameters,
        "reduced_bytes": 0 if size.devices == 1 else released_bytes(release, dimensions, batch),
        "private": settings.private and sigma > 0,
        "epsilon": spent,
        "target_epsilon": plan.target_epsilon,
        "delta": plan.delta,
        "accountant": plan.accountant,
        "noise_multiplier": sigma,
        **{f"sigma_{name}": part and part.sigma for name, part in parts.items()},
        **{f"clip_{name}": part and part.clip for name, part in parts.items()},
        "clipping": release.clipping,
        "noise_per_step": noise,
        "noise_of_mean": noise / math.sqrt(size.steps),
    }


def noise_norm(release: Release, dimensions: tuple[int, int]) -> float:
    """√(k(S₁σ₁)² + p(S₂σ₂)²), the root of the expected squared norm of a step's noise; GP: √p·S·σ, B-GEP: √k·S₁σ₁.

    An upper bound for GEP: the strategy projects the residual's noise out of the subspace, which leaves p − k of its p
    directions.
    """
    parts = zip((release.embedding, release.residual), dimensions, strict=True)
    return math.sqrt(sum(size * part.noise_std**2 for part, size in parts if part is not None))


def basis_bytes(k: int, sizes: tuple[int, ...]) -> float:
    """Memory of the basis, Σ kᵢpᵢ numbers with kᵢ ∝ √pᵢ. A single group has the most."""
    return 4 * k * sum(size**1.5 for size in sizes) / sum(size**0.5 for size in sizes)


def privacy_plan(settings: PrivacySettings, size: RunSize) -> PrivacyPlan:
    """The plan that the strategy would make for a run of this size."""
    return settings.plan(
        num_records=size.num_records,
        batch_size=size.expected_batch_size,
        steps=size.steps,
        num_parameters=size.num_parameters,
    )
