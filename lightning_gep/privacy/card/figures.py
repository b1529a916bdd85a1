"""ε on the card by more than one accountant, without making training wait for it."""

from functools import lru_cache

from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.accounting import SampledGaussian, epsilon
from lightning_gep.privacy.rounding import Figure, figure

Figures = dict[str, Figure]
"""Accountant → ε; None where it was not computed."""


def epsilon_spent(account: PrivacyAccount, *, private: bool, ended: bool) -> Figures:
    """ε spent, by PLD, RDP and the plan's own accountant; "inf" if the run is not private.

    RDP is cheap, and the plan's own figure is the account's. PLD, where it is not the plan's own, takes a query, so it
    waits until the run has `ended`.
    """
    own = account.plan.accountant

    def spent(name: str) -> Figure:
        if not private:
            return "inf"
        if name == own:
            return figure(account.epsilon())
        return _asked(account, account.steps, name) if name == "rdp" or ended or account.steps == 0 else None

    return {name: spent(name) for name in dict.fromkeys(("pld", "rdp", own))}


def epsilon_planned(account: PrivacyAccount, spent: Figures) -> Figures | None:
    """ε at the end of the plan, given what has been spent; None for a plan without an end.

    With a target the account needs the plan's own figure anyway; without one it is computed only by RDP.
    """
    plan = account.plan
    steps = plan.planned_steps
    if steps is None:
        return None

    def planned(name: str) -> Figure:
        if account.steps == steps or spent[name] == "inf":
            return spent[name]
        if name == "rdp":
            return _asked(account, steps, name)
        own = name == plan.accountant and plan.target_epsilon is not None
        return figure(account.epsilon_after(steps)) if own else None

    return {name: planned(name) for name in spent}


def _asked(account: PrivacyAccount, steps: int, accountant: str) -> Figure:
    return figure(_epsilon(account.plan.event, steps, account.delta, accountant))


@lru_cache(maxsize=64)
def _epsilon(event: SampledGaussian, steps: int, delta: float, accountant: str) -> float:
    return epsilon([(event, steps)], delta, accountant)
