"""The privacy account of a run: planned, spent, left. Every release is charged before it happens."""

import uuid
from typing import Any

from lightning_gep.accounting import delta as delta_of
from lightning_gep.accounting import epsilon as epsilon_of
from lightning_gep.curve import EpsilonCurve
from lightning_gep.errors import BudgetExhaustedError, ConfigurationError
from lightning_gep.ledger import Ledger, LedgerContent
from lightning_gep.plan import PrivacyPlan


class PrivacyAccount:
    """Counts releases, on disk first where there is a ledger, and refuses the one that would exceed the target.

    Guarantee: noise is drawn only after `charge` returned, so `steps` is never below the number of releases made.
    """

    def __init__(self, plan: PrivacyPlan, *, private: bool = True, run_id: str | None = None, steps: int = 0) -> None:
        self.plan, self.private, self.steps = plan, private, steps
        self.run_id = run_id or uuid.uuid4().hex
        self.ledger: Ledger | None = None
        self._curve = EpsilonCurve(plan.event, plan.delta, plan.accountant, plan.planned_steps)

    @property
    def delta(self) -> float:
        """The δ of the plan."""
        return self.plan.delta

    @property
    def noise_multiplier(self) -> float:
        """The step's σ."""
        return self.plan.event.noise_multiplier

    def epsilon(self, delta: float | None = None) -> float:
        """ε spent so far: at the plan's δ from the curve, rounded up; at another δ by asking the accountant."""
        if delta is None or delta == self.delta:
            return self._curve(self.steps)
        return epsilon_of([(self.plan.event, self.steps)], delta, self.plan.accountant)

    def delta_at(self, epsilon: float) -> float:
        """δ spent so far at another ε."""
        return delta_of([(self.plan.event, self.steps)], epsilon, self.plan.accountant)

    @property
    def remaining_epsilon(self) -> float | None:
        """What is left of the target ε, or None without a target."""
        target = self.plan.target_epsilon
        return None if target is None else max(0.0, target - self.epsilon())

    def charge(self) -> None:
        """Count one release, or refuse it; to be called right before its noise is drawn."""
        target = self.plan.target_epsilon
        if target is not None and self._curve(self.steps + 1) > target:
            raise BudgetExhaustedError(
                f"The budget is used up: after {self.steps} steps ε is {self.epsilon():.4g}, and one more step would "
                f"exceed the target of {target:g}. Stop here, or start a new run with a larger epsilon."
            )
        if self.ledger is not None:
            self.ledger.record(self.plan.event, self.steps)
        self.steps += 1

    def open_ledger(self, path: str) -> None:
        """Start a new ledger at `path`; every release from now on is written there first."""
        event = self.plan.event
        parameters = {
            "sample_rate": event.sample_rate,
            "noise_multiplier": event.noise_multiplier,
            "plan": self.plan.to_state(),
        }
        self.ledger = Ledger.create(path, self.run_id, parameters)

    def resume_ledger(self, path: str) -> None:
        """Continue the ledger at `path`: what it counts beyond this account was lost in a crash, and is spent."""
        ledger = Ledger.resume(path, self.run_id)
        try:
            self._check_releases(ledger.content)
        except ConfigurationError:
            ledger.close()
            raise
        self.ledger = ledger
        self.steps = max(self.steps, len(ledger.content.releases))

    def _check_releases(self, content: LedgerContent) -> None:
        for event, count in content.history:
            if event != self.plan.event:
                raise ConfigurationError(
                    f"The ledger holds {count} releases with sampling rate {event.sample_rate:.6g} and noise "
                    f"multiplier {event.noise_multiplier:.6g}, but this run has {self.plan.sample_rate:.6g} and "
                    f"{self.noise_multiplier:.6g}. Continue with the settings of the first run."
                )

    def report(self) -> dict[str, Any]:
        """The account in plain numbers, for logs and for people."""
        return {
            "private": self.private and self.noise_multiplier > 0,
            "epsilon": self.epsilon(),
            "delta": self.delta,
            "target_epsilon": self.plan.target_epsilon,
            "remaining_epsilon": self.remaining_epsilon,
            "steps": self.steps,
            "planned_steps": self.plan.planned_steps,
            "noise_multiplier": self.noise_multiplier,
            "sample_rate": self.plan.sample_rate,
            "accountant": self.plan.accountant,
        }

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: plain numbers and strings; no secret is among them."""
        return {
            "plan": self.plan.to_state(),
            "run_id": self.run_id,
            "steps": self.steps,
            "private": self.private,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], plan: PrivacyPlan | None = None) -> "PrivacyAccount":
        """The account of a checkpoint; if `plan` is given it must be the checkpoint's own."""
        saved = PrivacyPlan.from_state(state["plan"])
        if plan is not None:
            _check_same_plan(saved, plan)
        return cls(saved, private=state["private"], run_id=state["run_id"], steps=state["steps"])


def _check_same_plan(saved: PrivacyPlan, asked: PrivacyPlan) -> None:
    before, now = saved.to_state(), asked.to_state()
    changed = [f"{name}: {before[name]} → {now[name]}" for name in before if before[name] != now[name]]
    if changed:
        raise ConfigurationError(
            f"The privacy settings differ from those of the checkpoint ({'; '.join(changed)}). "
            "One run has one guarantee: continue with the old settings, or start a new run."
        )
