"""How noisy a run would be, before any training: from settings and public sizes to noise and ε.

The numbers come from the same `PrivacyPlan`, calibration and ε curve that a run uses. This module needs neither torch
nor Lightning.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from lightning_gep.arguments import one_of
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import SampledGaussian, power_of_ten_below
from lightning_gep.privacy.calibration import epsilon_after, make_mechanism, noise_multiplier_for
from lightning_gep.privacy.curve import GRID_POINTS, EpsilonCurve
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import Release
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.privacy.variants import MECHANISMS, Mechanism

GENERATORS = ("system", "secure", "seeded")

STRATEGY_DEFAULTS: dict[str, Any] = {
    "epsilon": None,
    "delta": None,
    "k": "auto",
    "noise_multiplier": None,
    "accountant": "pld",
    "generator": "system",
    "seed": 0,
    "mechanism": "gep",
    "clip_embedding": "auto",
    "clip_residual": "auto",
    "clip_norm": 1.0,
    "clipping": "separate",
    "split": "optimal",
    "groups": "balanced",
    "subspace": "tracked",
    "num_anchors": None,
    "refresh_every": 1,
    "decay": 0.95,
    "power_iterations": 1,
    "microbatch_size": "auto",
    "gradients": "auto",
    "aux_dataloader": None,
    "log_nonprivate": False,
    "trust_checkpoint": False,
    "start_method": "popen",
}
"""The arguments of GEPStrategy, whose module would import torch; a test keeps the two lists equal."""


@dataclass(frozen=True)
class NoisePlan:
    """One run that could be made: what it costs in ε, and its noise.

    Noise is measured as the root of the expected squared norm of what is added to the mean gradient, so in the
    gradient's own units. `epsilon` is what the accountant gives after the last step, at or below a target.
    """

    plan: PrivacyPlan
    size: RunSize
    mechanism: str
    k: int | None
    epsilon: float
    private: bool = True
    """False where the draws could be repeated (`generator="seeded"`) or there is no noise."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What else tells this run from the others it is compared with."""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.size.steps

    @property
    def release(self) -> Release:
        """Thresholds and σ of what a step releases."""
        return self.plan.release

    @property
    def noise_per_step(self) -> float:
        """√(k(S₁σ₁)² + p(S₂σ₂)²)/n̄; GP: √p·S·σ/n̄, B-GEP: √k·S₁σ₁/n̄.

        An upper bound for GEP: the strategy projects the k of the p directions of the residual's noise that lie in the
        subspace out again, so p − k would be exact.
        """
        return math.sqrt(sum(self._energies)) / self.size.expected_batch_size

    @property
    def noise_of_mean(self) -> float:
        """Noise of the mean of all steps' gradients: independent noise averages out, so noise per step / √steps."""
        return self.noise_per_step / math.sqrt(self.steps)

    @property
    def embedding_share(self) -> float:
        """The embedding's share of the noise's energy, k(S₁σ₁)² of the sum; the residual has the rest. 0 for GP."""
        embedding, residual = self._energies
        if embedding + residual == 0:
            return 0.0 if self.release.embedding is None else 1.0 if self.release.residual is None else math.nan
        return embedding / (embedding + residual)

    @property
    def epsilon_by_rdp(self) -> float:
        """ε of the whole run by RDP, the looser bound."""
        return _epsilon(self.plan.event, self.steps, self.plan.delta, "rdp")

    @property
    def records_read(self) -> int:
        """Expected number of records read in the whole run: what the run costs to compute."""
        return self.steps * self.size.expected_batch_size

    def epsilon_over_steps(self, points: Iterable[int] | None = None) -> list[tuple[int, float]]:
        """ε after some numbers of steps (by default about 32 that span the run), as the run itself will report it.

        It comes from the run's own curve, which rounds up to its next grid point.
        """
        stride = max(1, self.steps // GRID_POINTS)
        asked = [*range(stride, self.steps, stride), self.steps] if points is None else points
        curve = _curve(self.plan.event, self.plan.delta, self.plan.accountant, self.plan.planned_steps)
        return [(steps, curve(steps)) for steps in asked]

    def epsilon_at_quarters(self) -> list[tuple[int, float]]:
        """Steps and ε after a quarter, a half and three quarters of the run."""
        return self.epsilon_over_steps([-(-self.steps * quarter // 4) for quarter in (1, 2, 3)])

    def to_row(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        embedding, residual = self.release.embedding, self.release.residual
        row = {
            "mechanism": self.mechanism,
            "labels": dict(self.labels),
            "records": self.size.num_records,
            "parameters": self.size.num_parameters,
            "batch_size": self.size.expected_batch_size,
            "epochs": self.size.epochs,
            "steps": self.steps,
            "sample_rate": self.plan.sample_rate,
            "k": self.k,
            "private": self.private,
            "epsilon": self.epsilon,
            "epsilon_by_rdp": self.epsilon_by_rdp,
            "target_epsilon": self.plan.target_epsilon,
            "delta": self.plan.delta,
            "accountant": self.plan.accountant,
            "noise_multiplier": self.plan.event.noise_multiplier,
            "sigma_embedding": None if embedding is None else embedding.sigma,
            "sigma_residual": None if residual is None else residual.sigma,
            "clip_embedding": None if embedding is None else embedding.clip,
            "clip_residual": None if residual is None else residual.clip,
            "clipping": self.release.clipping,
            "noise_per_step": self.noise_per_step,
            "embedding_share": self.embedding_share,
            "noise_of_mean": self.noise_of_mean,
        }
        if self.plan.target_epsilon is None:
            row["epsilon_at_quarters"] = [{"steps": at, "epsilon": value} for at, value in self.epsilon_at_quarters()]
        return row

    @property
    def _energies(self) -> tuple[float, float]:
        """Expected squared norm of the noise on the sums: of the embedding (k numbers), and of the residual (p)."""
        embedding, residual = self.release.embedding, self.release.residual
        return (
            0.0 if embedding is None else (self.k or 0) * embedding.noise_std**2,
            0.0 if residual is None else self.size.num_parameters * residual.noise_std**2,
        )


def plan_noise(settings: Mapping[str, Any], size: RunSize, labels: Mapping[str, str] | None = None) -> NoisePlan:
    """The plan of a run with these arguments of GEPStrategy.

    Raises ConfigurationError for settings that the strategy would refuse, and for "auto", which is chosen on public
    data only when training starts.
    """
    check_names(settings)
    values = {**STRATEGY_DEFAULTS, **settings}
    one_of("generator", values["generator"], GENERATORS)
    one_of("mechanism", values["mechanism"], MECHANISMS)
    mechanism = _mechanism(values)
    k = _known(values, "k") if mechanism.uses_basis else None
    delta = power_of_ten_below(1 / size.num_records) if values["delta"] is None else values["delta"]
    epsilon, noise, accountant = values["epsilon"], values["noise_multiplier"], values["accountant"]
    if (epsilon is None) == (noise is None):
        raise ConfigurationError(
            f"epsilon={epsilon} and noise_multiplier={noise}: give exactly one of them, and null for the other."
        )

    def make(sigma: float) -> PrivacyPlan:
        made = PrivacyPlan.make(
            mechanism,
            num_records=size.num_records,
            expected_batch_size=size.expected_batch_size,
            delta=delta,
            noise_multiplier=sigma,
            steps=size.steps,
            k=k,
            num_parameters=size.num_parameters,
            accountant=accountant,
        )
        return replace(made, target_epsilon=epsilon)

    # With no noise at first: mistakes should be found before the seconds of a calibration.
    draft = make(0.0)
    if epsilon is None:
        plan = make(noise)
        spent = _epsilon(plan.event, size.steps, delta, accountant)
    else:
        sigma, spent = _calibrated(epsilon, delta, draft.sample_rate, size.steps, accountant)
        plan = make(sigma)
    private = values["generator"] != "seeded" and plan.event.noise_multiplier > 0
    return NoisePlan(plan, size, values["mechanism"], k, spent, private, labels or {})


def check_names(names: Iterable[str], prefix: str = "") -> None:
    """Raises ConfigurationError for a name that is no argument of GEPStrategy; `prefix` is said before it."""
    for name in names:
        if name not in STRATEGY_DEFAULTS:
            close = difflib.get_close_matches(name, STRATEGY_DEFAULTS, n=1)
            fix = f"Did you mean {prefix}{close[0]}?" if close else f"There are {', '.join(STRATEGY_DEFAULTS)}."
            raise ConfigurationError(f"{prefix}{name} is not a setting of GEPStrategy. {fix}")


def _mechanism(values: Mapping[str, Any]) -> Mechanism:
    """The mechanism as the strategy makes it; thresholds of other mechanisms are not looked at, as there."""
    name, split = values["mechanism"], values["split"]
    if isinstance(split, list | tuple):
        split = tuple(split)
    elif not isinstance(split, str):
        raise ConfigurationError(f"split={split!r} must be 'optimal', 'equal' or a pair of sigmas. Use 'optimal'.")
    used = {"gep": ("clip_embedding", "clip_residual"), "bgep": ("clip_embedding",), "gp": ("clip_norm",)}[name]
    clips = {clip: _known(values, clip) for clip in used}
    for clip, value in clips.items():
        if value == math.inf and values["noise_multiplier"] != 0:
            raise ConfigurationError(
                f"{clip}=inf asks for infinite noise. Give a finite threshold, or noise_multiplier=0 for a run without "
                "privacy."
            )
    return make_mechanism(name, clipping=values["clipping"], split=split, **clips)


def _known(values: Mapping[str, Any], name: str) -> Any:
    if values[name] in ("auto", None):
        raise ConfigurationError(
            f"{name}={values[name]!r} is chosen on public data when training starts, so its noise cannot be known "
            f"before. Give a number, e.g. {'100' if name == 'k' else '1.0'}."
        )
    return values[name]


@cache
def _calibrated(epsilon: float, delta: float, sample_rate: float, steps: int, accountant: str) -> tuple[float, float]:
    """Kept because mechanisms and thresholds that are compared need the same σ."""
    return noise_multiplier_for(epsilon, delta, sample_rate, steps, accountant)


@cache
def _epsilon(event: SampledGaussian, steps: int, delta: float, accountant: str) -> float:
    return epsilon_after(event, steps, delta, accountant)


@cache
def _curve(event: SampledGaussian, delta: float, accountant: str, steps: int | None) -> EpsilonCurve:
    return EpsilonCurve(event, delta, accountant, steps)
