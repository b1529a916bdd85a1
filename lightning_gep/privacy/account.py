"""The privacy account of a run: planned, spent, remaining. Every release is charged before it happens."""

import contextlib
import math
import os
import uuid
from pathlib import Path
from typing import Any

from lightning_gep.errors import BudgetExhaustedError, ConfigurationError
from lightning_gep.privacy.accounting import EpsilonCurve
from lightning_gep.privacy.accounting import epsilon as epsilon_of
from lightning_gep.privacy.ledger import Ledger
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.rounding import shown_epsilon


class PrivacyAccount:
    """Counts releases, in the ledger first if there is one, and refuses a release that would exceed the target ε.

    Guarantee: noise is drawn only after `charge` returned, so `steps` is never below the number of releases made.

    Args:
        plan: Sampling, noise and accounting of the run.
        private: Whether sampling and noise are secret. If not, ε is ∞, but the budget is enforced all the same.
        run_id: Identifies the run in ledgers, checkpoints and cards; a new one by default.
        steps: Releases made so far.

    Example:
        ```python
        account = trainer.strategy.privacy
        account.epsilon(), account.delta, account.steps
        account.report()  # everything, as plain numbers
        ```

    """

    def __init__(self, plan: PrivacyPlan, *, private: bool = True, run_id: str | None = None, steps: int = 0) -> None:
        self.plan, self.private, self.steps = plan, private, steps
        self.trusted = False
        """Whether the count started from a checkpoint whose ledger was lost: steps after it are not counted."""
        self.builds_on: list[str] = []
        """Other private runs whose weights this one started from; the user states that they share no record."""
        self.run_id = run_id or uuid.uuid4().hex
        self.ledger: Ledger | None = None
        self.ledger_path: Path | None = None
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
        """ε spent so far, at the plan's δ or another; ∞ for a run that is not private.

        Args:
            delta: The δ to compute ε at, instead of the plan's.

        """
        return self.accounted_epsilon(delta) if self.private else math.inf

    def accounted_epsilon(self, delta: float | None = None) -> float:
        """The accountant's ε for the steps so far; it is a guarantee only if the run is private.

        At the plan's δ from the curve, rounded up; at another δ from the accountant.
        """
        if delta is None or delta == self.delta:
            return self._curve(self.steps)
        return epsilon_of([(self.plan.event, self.steps)], delta, self.plan.accountant)

    def epsilon_after(self, steps: int) -> float:
        """ε after `steps` steps at the plan's δ, from the curve, rounded up."""
        return self._curve(steps)

    @property
    def remaining_epsilon(self) -> float | None:
        """What is left of the target ε, or None without a target."""
        target = self.plan.target_epsilon
        return None if target is None else max(0.0, target - self.accounted_epsilon())

    def allows_another_step(self, target: float | None = None) -> bool:
        """Whether one more step keeps ε at or below `target`, or the plan's own; always true without a target."""
        targets = [limit for limit in (target, self.plan.target_epsilon) if limit is not None]
        return not targets or self._curve.stays_within(self.steps + 1, min(targets))

    def charge(self) -> None:
        """Count one release; called right before its noise is drawn.

        Raises:
            BudgetExhaustedError: If the release would exceed the target ε.
            LedgerError: If the ledger is closed.

        """
        if not self.allows_another_step():
            spent = shown_epsilon(self.accounted_epsilon())
            raise BudgetExhaustedError(
                f"The budget is used up: after {self.steps} steps ε is {spent}, and another step would exceed "
                f"the target of {self.plan.target_epsilon:g}. Stop here, or continue from a checkpoint with a larger "
                "epsilon. The callback PrivacyBudget() ends a run here without this error."
            )
        if self.ledger is not None:
            self.ledger.record(self.plan.event, self.steps)
        self.steps += 1

    def open_ledger(self, path: str | os.PathLike[str]) -> None:
        """Start a new ledger at `path`; every later release is written there first."""
        event = self.plan.event
        rates = {"sample_rate": event.sample_rate, "noise_multiplier": event.noise_multiplier}
        self._use(Ledger.create(path, self.run_id, {**rates, "plan": self.plan.to_state()}))

    def resume_ledger(self, path: str | os.PathLike[str]) -> None:
        """Continue the ledger at `path`. What it counts beyond this account was lost in a crash, and is spent."""
        ledger = Ledger.resume(path, self.run_id)
        for event, count in ledger.content.history:
            if event != self.plan.event:
                ledger.close()
                raise ConfigurationError(
                    f"The ledger holds {count} releases with sampling rate {event.sample_rate:.6g} and noise "
                    f"multiplier {event.noise_multiplier:.6g}, but this run has {self.plan.sample_rate:.6g} and "
                    f"{self.noise_multiplier:.6g}. Continue with the settings of the first run."
                )
        self._use(ledger)

    def close_ledger(self) -> None:
        """Close the ledger's file, so that it can be resumed; nothing can be released until then."""
        if self.ledger is not None:
            self.ledger.close()

    def discard_ledger(self) -> None:
        """Delete the ledger of a run that was refused before its first release."""
        self.close_ledger()
        if self.ledger is not None and self.ledger.content.count == 0:
            self.ledger.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                self.ledger.path.parent.rmdir()

    def _use(self, ledger: Ledger) -> None:
        """Take the larger count of ledger and account, and write down what the ledger lacks before the next crash."""
        self.ledger, self.ledger_path = ledger, ledger.path
        if self.steps > ledger.content.count:
            ledger.carry(self.steps - ledger.content.count)
        self.steps = ledger.content.count

    def report(self) -> dict[str, Any]:
        """The account as plain numbers and strings; `epsilon` is ∞ unless the run is `private`."""
        return {
            "private": self.private and self.noise_multiplier > 0,
            "epsilon": self.epsilon(),
            "accounted_epsilon": self.accounted_epsilon(),
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
        """The state for a checkpoint: plain numbers and strings, no secret."""
        return {
            "plan": self.plan.to_state(),
            "run_id": self.run_id,
            "steps": self.steps,
            "private": self.private,
            "trusted": self.trusted,
            "builds_on": list(self.builds_on),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "PrivacyAccount":
        """The account saved in a checkpoint."""
        plan = PrivacyPlan.from_state(state["plan"])
        account = cls(plan, private=state["private"], run_id=state["run_id"], steps=state["steps"])
        account.trusted = state.get("trusted", False)
        account.builds_on = list(state.get("builds_on", ()))
        return account
