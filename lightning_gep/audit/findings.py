"""The whole audit of a configuration: one release, the composition of a run, and a training."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.arguments import one_of
from lightning_gep.audit import mechanism, training
from lightning_gep.audit.estimators import Bound, Progress
from lightning_gep.audit.fits import Subject
from lightning_gep.audit.subsampled import subsampled_bound
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import SampledGaussian
from lightning_gep.privacy.accounting import epsilon as epsilon_of
from lightning_gep.privacy.calibration import noise_multiplier_for
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.settings import PrivacySettings

PARTS = ("release", "run", "training")
BOUNDS = {"release": 3, "run": 1, "training": 4}


@dataclass(frozen=True)
class Finding:
    """A claim of the account and the lower bounds that were measured for it."""

    part: str
    mechanism: str
    claimed: float
    delta: float
    bounds: tuple[Bound, ...]
    settings: dict[str, Any]
    """What was run: noise multiplier, sampling rate, steps, numbers of canaries and scores."""
    seconds: float

    @property
    def strongest(self) -> Bound:
        """The largest of the bounds."""
        return max(self.bounds, key=lambda bound: bound.epsilon)

    @property
    def exceeded(self) -> bool:
        """Whether a bound is above the claim: then the claim is wrong, up to the confidence of the bound."""
        return self.strongest.epsilon > self.claimed

    def to_state(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "exceeded": self.exceeded}


def audit(
    subject: Subject,
    *,
    parts: Sequence[str] = PARTS,
    confidence: float = 0.95,
    accuracy: float = mechanism.ACCURACY,
    canaries: int = training.CANARIES,
    runs: int = 1,
    progress: Progress = lambda *_: None,
) -> list[Finding]:
    """Compare the ε that a configuration claims with lower bounds from real fits.

    Args:
        subject: Module, training data and settings. Nothing about it has to be secret: use public or synthetic records
            if findings are to be shared.
        parts: "release": one release at q = 1, calibrated to the target ε. "run": the steps of the whole run, from the
            likelihood ratios of their distributions. "training": a run with canaries in the data.
        confidence: That all bounds returned hold at once.
        accuracy: The standard error of a canary's shift in part "release", as a share of it; time goes with its
            inverse square.
        canaries: How many a training has.
        runs: Trainings.
        progress: Told what is going on and how far it is.

    Returns:
        A finding for every part.

    Raises:
        ConfigurationError: For settings without noise, and whatever training refuses.

    """
    for part in parts:
        one_of("parts", part, PARTS)
    settings, plan = subject.strategy().settings, _plan(subject)
    name = settings.mechanism
    level = 1 - (1 - confidence) / sum(BOUNDS[part] for part in parts)
    found, seen = [], None
    if "release" in parts:
        noise = _noise_of_one_release(settings, plan.delta)
        start = time.monotonic()
        seen = mechanism.releases(subject, noise, accuracy=accuracy, progress=progress)
        claimed = epsilon_of([(SampledGaussian(1.0, noise), 1)], plan.delta, plan.accountant)
        measured = {"noise_multiplier": noise, "releases": len(seen.scores), "scores": seen.scores.size}
        bounds = seen.bounds(plan.delta, level)
        found.append(Finding("release", name, claimed, plan.delta, tuple(bounds), measured, time.monotonic() - start))
    if "run" in parts:
        start, steps = time.monotonic(), plan.planned_steps or 1
        bound = _composed(plan, 1.0, plan.sample_rate, steps, level, progress)
        claimed, described = _claimed(plan, steps), _described(plan, steps)
        found.append(Finding("run", name, claimed, plan.delta, (bound,), described, time.monotonic() - start))
    if "training" in parts:
        start = time.monotonic()
        trained = training.train_with_canaries(subject, canaries=canaries, runs=runs, progress=progress)
        bounds = trained.bounds(trained.plan.delta, level)
        if seen is not None:
            third = 1 - (1 - level) / 3  # shift, sampling rate and Monte Carlo have to hold together
            scale, rate = seen.scale(third), trained.sample_rate(third)
            measured_bound = _composed(trained.plan, scale, rate, trained.steps, third, progress)
            bounds.append(Bound("as measured", measured_bound.epsilon, level, "steps are independent and alike"))
        described = {**_described(trained.plan, trained.steps), "canaries": len(trained.scores), "runs": runs}
        claimed, delta = _claimed(trained.plan, trained.steps), trained.plan.delta
        found.append(Finding("training", name, claimed, delta, tuple(bounds), described, time.monotonic() - start))
    return found


def _plan(subject: Subject) -> PrivacyPlan:
    """The plan of the run, as the strategy makes it; a threshold or k that is "auto" has no part in the step's σ."""
    used, loader = subject.strategy(), subject.train_loader
    limit = subject.trainer.get("limit_train_batches")
    groups = ParameterGroups.from_module(subject.module, used.cost.groups)
    size = RunSize(
        num_records=len(loader.dataset),  # type: ignore[arg-type]
        num_parameters=groups.num_parameters,
        batch_size=loader.batch_size or 1,
        max_epochs=subject.trainer.get("max_epochs"),
        max_steps=subject.trainer.get("max_steps", -1),
        limit_train_batches=1.0 if limit is None else limit,
        drop_last=loader.drop_last,
    )
    plan = used.settings.with_choices().plan(
        num_records=size.num_records,
        batch_size=size.batch_size,
        steps=size.steps,
        num_parameters=size.num_parameters,
    )
    if plan.event.noise_multiplier == 0:
        raise ConfigurationError(
            "A run without noise claims nothing that could be audited. Set epsilon, or a noise_multiplier above 0.",
            setting="noise_multiplier",
        )
    return plan


def _noise_of_one_release(settings: PrivacySettings, delta: float) -> float:
    if settings.epsilon is None:
        assert settings.noise_multiplier, "no noise was refused"
        return settings.noise_multiplier
    return noise_multiplier_for(settings.epsilon, delta, 1.0, 1, settings.accountant)[0]


def _composed(
    plan: PrivacyPlan, scale: float, sample_rate: float, steps: int, confidence: float, progress: Progress
) -> Bound:
    """The bound for a run whose canaries shift each part by `scale` times what the account assumes."""
    parts = plan.release.parts
    # Joint clipping divides one shift between the parts.
    share = scale / math.sqrt(len(parts)) if plan.release.clipping == "joint" else scale
    shifts = [share / part.sigma for part in parts]
    return subsampled_bound(shifts, sample_rate, steps, plan.delta, confidence, progress=progress)


def _claimed(plan: PrivacyPlan, steps: int) -> float:
    return epsilon_of([(plan.event, steps)], plan.delta, plan.accountant)


def _described(plan: PrivacyPlan, steps: int) -> dict[str, Any]:
    return {"noise_multiplier": plan.event.noise_multiplier, "sample_rate": plan.sample_rate, "steps": steps}
