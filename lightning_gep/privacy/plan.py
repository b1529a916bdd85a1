"""The one frozen config behind the guarantee: sampling, noise and accounting read it, so they cannot disagree."""

import math
from dataclasses import dataclass, replace
from typing import Any

from lightning_gep.arguments import finite_positive, not_negative, positive_integer
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import SampledGaussian, check_delta, make_accountant
from lightning_gep.privacy.calibration import check_one_target, noise_multiplier_for
from lightning_gep.privacy.release import Mechanism, Release


@dataclass(frozen=True)
class PrivacyPlan:
    """Everything the (ε, δ) statement rests on.

    `num_records` (N) and `expected_batch_size` (n̄) are fixed public numbers, the same for both neighbouring data
    sets: sums are divided by n̄, never by the size of the batch drawn, and the sampling rate is q = n̄/N.
    """

    num_records: int
    expected_batch_size: int
    delta: float
    release: Release
    accountant: str = "pld"
    target_epsilon: float | None = None
    planned_steps: int | None = None
    unit: str = "record"
    """What is added or removed: a record, or a person with all their records. N and n̄ count these."""

    def __post_init__(self) -> None:
        positive_integer("num_records", self.num_records, "It is the number of training records (N).")
        positive_integer("expected_batch_size", self.expected_batch_size, "It is batch_size × devices.")
        if self.expected_batch_size > self.num_records:
            raise ConfigurationError(
                f"The expected batch size {self.expected_batch_size} is above the number of records {self.num_records} "
                "(sampling rate q > 1). Use a smaller batch size or fewer devices.",
                setting="batch_size",
            )
        check_delta(self.delta, self.num_records)
        make_accountant(self.accountant)
        if self.target_epsilon is not None:
            finite_positive("epsilon", self.target_epsilon, "Give the privacy budget, e.g. 8.0.")
        if self.planned_steps is not None:
            positive_integer("steps", self.planned_steps, "It is the number of optimizer steps of the whole run.")

    @property
    def counted(self) -> str:
        """What N and n̄ are numbers of."""
        return "records" if self.unit == "record" else "persons"

    @property
    def sample_rate(self) -> float:
        """q = n̄/N."""
        return self.expected_batch_size / self.num_records

    @property
    def event(self) -> SampledGaussian:
        """What one step costs."""
        return SampledGaussian(self.sample_rate, self.release.noise_multiplier)

    @classmethod
    def make(
        cls,
        mechanism: Mechanism,
        *,
        num_records: int,
        expected_batch_size: int,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        steps: int | None = None,
        k: int | None = None,
        num_parameters: int | None = None,
        accountant: str = "pld",
        unit: str = "record",
    ) -> "PrivacyPlan":
        """A plan from a target ε (the noise is calibrated for `steps` steps) or from a given noise multiplier."""
        check_one_target(epsilon, noise_multiplier)
        if mechanism.uses_basis and k is not None:
            positive_integer("k", k, "It is the number of basis vectors, e.g. 1000; for none use mechanism='gp'.")
            if num_parameters is not None and k > num_parameters:
                raise ConfigurationError(
                    f"k={k} basis vectors are more than the {num_parameters} trainable parameters. "
                    f"Use k={num_parameters} at most, or mechanism='gp'.",
                    setting="k",
                )
        # Without noise first, so that every other mistake is found before the slow calibration.
        silent = mechanism.release(0.0, k=k, num_parameters=num_parameters)
        plan = cls(num_records, expected_batch_size, delta, silent, accountant, epsilon, steps, unit)
        if epsilon is not None:
            if steps is None:
                raise ConfigurationError(
                    f"epsilon={epsilon} cannot be calibrated without an end of training. "
                    "Set max_epochs or max_steps, or give noise_multiplier instead of epsilon.",
                    setting="epsilon",
                )
            noise_multiplier, _ = noise_multiplier_for(epsilon, delta, plan.sample_rate, steps, accountant)
        assert noise_multiplier is not None
        not_negative("noise_multiplier", noise_multiplier, "It is the step's σ; 0 means no noise and no privacy.")
        return replace(plan, release=mechanism.release(noise_multiplier, k=k, num_parameters=num_parameters))

    def to_state(self) -> dict[str, Any]:
        """Plain numbers and strings for JSON."""
        return {**vars(self), "release": self.release.to_state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "PrivacyPlan":
        """The inverse of `to_state`."""
        return cls(**{**state, "release": Release.from_state(state["release"])})


def check_same_plan(saved: PrivacyPlan, asked: PrivacyPlan) -> None:
    """Raises ConfigurationError, naming the differences, unless both plans give the same guarantee.

    Numbers may differ in their last digits, because splitting a step's σ and recombining it rounds. The run continues
    with the saved plan, so this only detects that another plan was meant.
    """
    before, now = saved.to_state(), asked.to_state()
    changed = [f"{name}: {before[name]} → {now[name]}" for name in before if not _equal(before[name], now[name])]
    if changed:
        raise ConfigurationError(
            f"The privacy settings differ from those of the checkpoint ({'; '.join(changed)}). "
            "One run has one guarantee: continue with the old settings, or start a new run."
        )


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_equal(first[name], second[name]) for name in first)
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-12)
    return bool(first == second)
