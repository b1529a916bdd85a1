"""ε by more than one accountant, without making training wait for it."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.accounting import LARGEST_TIGHT_EPSILON, Pld, Rdp, SampledGaussian, pld_grid
from lightning_gep.privacy.rounding import Figure

Figures = dict[str, Figure]
"""Accountant → ε; None where it was not computed."""
FEW_STEPS = 1000
"""Up to here a grid ten times coarser adds less than 0.01 % to PLD's ε."""


@dataclass(frozen=True)
class Spending:
    """ε spent and planned; None for a plan without an end."""

    spent: Figures
    planned: Figures | None


def spending(account: PrivacyAccount, *, private: bool, ended: bool) -> Spending:
    """ε by PLD and RDP, and by the plan's own accountant; "inf" everywhere if the run is not private.

    The plan's own accountant says what the account says. RDP is cheap once one step is known. PLD, where it is not the
    plan's own, costs a query, so it waits until the run has `ended`, as does a plan that no target asked for.
    """
    plan = account.plan
    names = dict.fromkeys(("pld", "rdp", plan.accountant))
    if not private or account.noise_multiplier == 0:
        return Spending(dict.fromkeys(names, "inf"), dict.fromkeys(names, "inf") if plan.planned_steps else None)
    spent = {name: _spent(name, account, ended) for name in names}
    if plan.planned_steps is None:
        return Spending(spent, None)
    return Spending(spent, {name: _planned(name, account, spent[name]) for name in names})


def _spent(name: str, account: PrivacyAccount, ended: bool) -> Figure:
    if account.steps == 0:
        return 0.0
    if name == "rdp":
        return _rdp_epsilon(account.plan.event, account.steps, account.delta)
    if name == account.plan.accountant:
        return _figure(account.epsilon())
    return _pld_epsilon(account.plan.event, account.steps, account.delta) if ended else None


def _planned(name: str, account: PrivacyAccount, spent: Figure) -> Figure:
    plan = account.plan
    assert plan.planned_steps is not None
    if account.steps == plan.planned_steps:
        return spent
    if name == "rdp":
        return _rdp_epsilon(plan.event, plan.planned_steps, plan.delta)
    # With a target every step asks the account's curve anyway, and it is exact at the end of the plan.
    own = name == plan.accountant and plan.target_epsilon is not None
    return _figure(account.epsilon_after(plan.planned_steps)) if own else None


def _rdp_epsilon(event: SampledGaussian, steps: int, delta: float) -> Figure:
    return _figure(_rdp(event, steps, delta))


def _rdp(event: SampledGaussian, steps: int, delta: float) -> float:
    return float(compute_epsilon(Rdp.ORDERS, steps * _one_step(event), delta)[0])


@lru_cache(maxsize=64)
def _one_step(event: SampledGaussian) -> Any:
    """RDP of one step at the orders of `Rdp`; that of more steps is a multiple of it."""
    return RdpAccountant(Rdp.ORDERS).compose(event.to_dp_event()).rdp


@lru_cache(maxsize=64)
def _pld_epsilon(event: SampledGaussian, steps: int, delta: float) -> Figure:
    bound = _rdp(event, steps, delta)
    if bound > LARGEST_TIGHT_EPSILON or delta < Pld.SMALLEST_DELTA:
        return _figure(bound)
    grid = pld_grid(bound) if steps > FEW_STEPS else pld_grid(10 * bound)
    return min(
        bound,
        float(PLDAccountant(value_discretization_interval=grid).compose(event.to_dp_event(), steps).get_epsilon(delta)),
    )


def _figure(value: float) -> Figure:
    return "inf" if math.isinf(value) else value
