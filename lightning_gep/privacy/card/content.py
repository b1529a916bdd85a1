"""The content of a run's card, as plain numbers and strings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.accounting import epsilon
from lightning_gep.privacy.card.rendering import sentence, sentences
from lightning_gep.privacy.files import now
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import Part
from lightning_gep.privacy.rounding import Figure, figure

FORMAT = 1
GRADIENT_STATISTICS = "… (statistics of gradients and clipping, where PrivacyMonitor logs them)"
CONTINUED = " This run continued after that was counted."

# Cards on disk hold these reasons, and later fits of a run compare with them: do not reword.
NO_NOISE = "no noise is added"
INFINITE_CLIP = "a clipping threshold is infinite, so one record can change a sum without limit"
NO_BOUND = "the accountant proves no finite ε"
SEEDED = "sampling and noise follow a seed and can be repeated"
SEEDED_BEFORE = "an earlier part of this run followed a seed that can be repeated"

Card = dict[str, Any]
Figures = dict[str, Figure]
"""Accountant → ε; None where it was not computed."""


@dataclass(frozen=True)
class RunFacts:
    """What a card says about a fit that does not change while it runs."""

    mechanism: Mapping[str, Any]
    generator: str
    device: str
    software: Mapping[str, Any]
    public_data: Mapping[str, Any] | None = None
    logged: tuple[str, ...] = ()
    log_nonprivate: bool = False
    left_before: tuple[str, ...] = ()
    """What earlier fits of the run published without protection."""
    not_private_before: tuple[str, ...] = ()
    """Why earlier fits of the run were not private."""
    selection_before: Mapping[str, Any] | None = None
    """What a sweep wrote on the card of an earlier fit of the run."""
    processes: int = 1

    @property
    def left(self) -> list[str]:
        """Names of everything that was ever published without protection."""
        now_left = (*self.logged, GRADIENT_STATISTICS) if self.log_nonprivate else ()
        return list(dict.fromkeys((*self.left_before, *now_left)))


def terms(unit: str) -> dict[str, str]:
    """What the guarantee is about, for the unit of a plan."""
    one = "one training record" if unit == "record" else f"one {unit} with all their records"
    return {
        "definition": "(ε, δ)-differential privacy",
        "unit": one,
        "neighbouring_relation": f"adding or removing {one.replace('training ', '')}",
    }


def run_card(account: PrivacyAccount, facts: RunFacts, status: str) -> Card:
    """The card of a run as of now."""
    plan, ended = account.plan, status != "training"
    not_private = _why_not_private(account, facts)
    figures, planned = _epsilons(account, private=not not_private, ended=ended)
    spent = figures[plan.accountant]
    if spent == "inf" and not not_private:
        not_private = [NO_BOUND]
    carried = 0 if account.ledger is None else account.ledger.content.carried
    if facts.selection_before is None:
        selection = selection_block(
            "single", spent, runs=1, delta=plan.delta, accountant=plan.accountant, complete=ended
        )
    else:  # what a sweep counted before the run continued is no longer complete
        words = str(facts.selection_before["explanation"]).removesuffix(CONTINUED)
        selection = {**facts.selection_before, "complete": False, "explanation": words + CONTINUED}
    return {
        "format": FORMAT,
        "kind": "run",
        "run_id": account.run_id,
        "written": now().replace("+00:00", "Z"),
        "status": status,
        "guarantee": {
            "statement": sentence(
                "statement",
                **{"spent": spent, "delta": plan.delta, "not_private": not_private},
                **{"ended": ended, "steps": account.steps, "planned": plan.planned_steps},
                unit=terms(plan.unit)["unit"],
            ),
            **terms(plan.unit),
            "trust_model": sentence("trust_model"),
            "private": not not_private,
            "not_private_because": not_private,
            "delta": plan.delta,
            "accountant": plan.accountant,
            "target_epsilon": plan.target_epsilon,
            "epsilon_spent": figures,
            "epsilon_planned": planned,
            "composition": sentence("composition"),
        },
        "mechanism": dict(facts.mechanism),
        "sampling": {
            "method": "poisson",
            "records": plan.num_records,
            "counted": plan.counted,
            "expected_batch_size": plan.expected_batch_size,
            "sample_rate": plan.sample_rate,
        },
        "steps": {
            "counted": account.steps,
            "planned": plan.planned_steps,
            "ledger": None if account.ledger_path is None else account.ledger_path.name,
            "carried": carried,
        },
        "public_data": None if facts.public_data is None else dict(facts.public_data),
        "released": sentences(
            "released", private=not not_private, uses_public_data=facts.mechanism.get("num_anchors") is not None
        ),
        "not_covered": not_covered(account, facts, carried),
        "logs": {
            "log_nonprivate": facts.log_nonprivate,
            "logged_by_training_step": list(facts.logged),
            "left_unprotected": facts.left,
        },
        "utility": sentence("utility"),
        "selection": selection,
        "randomness": {
            "generator": facts.generator,
            "secret": not {SEEDED, SEEDED_BEFORE} & {*not_private},
            "explanation": sentence("randomness", generator=facts.generator, device=facts.device),
        },
        "software": {**facts.software, "device": facts.device, "processes": facts.processes},
    }


def not_covered(account: PrivacyAccount, facts: RunFacts, carried: int) -> list[str]:
    """What ε does not cover: what training logged, and all that no mechanism on gradients can protect."""
    return sentences(
        "not_covered",
        logged=facts.logged,
        left=facts.left,
        log_nonprivate=facts.log_nonprivate,
        has_public_data=facts.public_data is not None,
        lost_ledger=carried > 0 or account.trusted,
        carried=carried,
        builds_on=account.builds_on,
        unit=account.plan.unit,
    )


def release_section(plan: PrivacyPlan) -> dict[str, Any]:
    """What a step releases, and how much one record can change it."""
    release = plan.release
    names = {"embedding": release.embedding, "residual" if release.embedding else "gradient": release.residual}
    bounds = [f"the {name} by at most {part.clip:g}" for name, part in names.items() if part is not None]
    joint = release.clipping == "joint"
    return {
        "noise_multiplier": release.noise_multiplier,
        "clipping": release.clipping,
        "embedding": _part(release.embedding),
        "residual": _part(release.residual),
        "sensitivity": sentence(
            "sensitivity",
            **{"bounds": bounds, "joint": joint, "expected_batch_size": plan.expected_batch_size, "unit": plan.unit},
        ),
    }


def _part(part: Part | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {"clip": figure(part.clip), "sigma": part.sigma, "noise_std": part.noise_std}


def _why_not_private(account: PrivacyAccount, facts: RunFacts) -> list[str]:
    """Every reason why the run is not private; none if it is."""
    reasons = []
    if account.noise_multiplier == 0:
        reasons.append(NO_NOISE)
    if any(math.isinf(part.clip) for part in account.plan.release.parts):
        reasons.append(INFINITE_CLIP)
    if facts.generator == "seeded":
        reasons.append(SEEDED)
    elif not account.private or SEEDED in facts.not_private_before:
        reasons.append(SEEDED_BEFORE)
    return list(dict.fromkeys((*reasons, *(r for r in facts.not_private_before if r != SEEDED))))


def _epsilons(account: PrivacyAccount, *, private: bool, ended: bool) -> tuple[Figures, Figures | None]:
    """ε spent and ε at the end of the plan, by PLD, RDP and the plan's own accountant; no plan without an end.

    RDP is cheap, and the plan's own figures are the account's (the planned one if there is a target, which needs it
    anyway). PLD, where it is not the plan's own, takes a query, so it waits until the run has `ended`.
    """
    plan, now, end = account.plan, account.steps, account.plan.planned_steps
    spent: Figures = {}
    planned: Figures = {}
    for name in dict.fromkeys(("pld", "rdp", plan.accountant)):
        own, cheap = name == plan.accountant, name == "rdp"
        if not private:
            spent[name] = "inf"
        elif own:
            spent[name] = figure(account.epsilon())
        else:
            spent[name] = figure(epsilon([(plan.event, now)], plan.delta, name)) if cheap or ended or not now else None
        if now == end or end is None or spent[name] == "inf":
            planned[name] = spent[name]
        elif cheap:
            planned[name] = figure(epsilon([(plan.event, end)], plan.delta, name))
        else:
            planned[name] = figure(account.epsilon_after(end)) if own and plan.target_epsilon is not None else None
    return spent, None if end is None else planned


def selection_block(rule: str, epsilon: Figure, *, facts: Mapping[str, Any] | None = None, **block: Any) -> Card:
    """What picking this run cost; `facts` are further values for the explanation of the `rule` in `sentences.txt`."""
    found = {"rule": rule, "epsilon": epsilon, **block, "conditions": sentences(f"{rule}_conditions")}
    return {**found, "explanation": sentence(f"{rule}_selection", **found, **(facts or {}))}
