"""The content of a run's card, as plain numbers and strings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.card import sentences
from lightning_gep.privacy.card.figures import epsilon_planned, epsilon_spent
from lightning_gep.privacy.files import now
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import Part
from lightning_gep.privacy.rounding import Figure, figure
from lightning_gep.privacy.selection import single_selection

FORMAT = 1
GRADIENT_STATISTICS = "… (statistics of gradients and clipping, where PrivacyMonitor logs them)"


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


def run_card(account: PrivacyAccount, facts: RunFacts, status: str) -> dict[str, Any]:
    """The card of a run as of now."""
    plan, ended = account.plan, status != "training"
    not_private = why_not_private(account, facts)
    figures = epsilon_spent(account, private=not not_private, ended=ended)
    spent = figures[plan.accountant]
    if spent == "inf" and not not_private:
        not_private = [sentences.NO_BOUND]
    carried = 0 if account.ledger is None else account.ledger.content.carried
    return {
        "format": FORMAT,
        "kind": "run",
        "run_id": account.run_id,
        "written": now().replace("+00:00", "Z"),
        "status": status,
        "guarantee": {
            "statement": sentences.statement(spent, plan.delta, not_private, None if ended else _progress(account)),
            "definition": sentences.DEFINITION,
            "private": not not_private,
            "not_private_because": not_private,
            "unit": sentences.UNIT,
            "neighbouring_relation": sentences.NEIGHBOURING_RELATION,
            "trust_model": sentences.TRUST_MODEL,
            "delta": plan.delta,
            "accountant": plan.accountant,
            "target_epsilon": plan.target_epsilon,
            "epsilon_spent": figures,
            "epsilon_planned": epsilon_planned(account, figures),
            "composition": sentences.COMPOSITION,
        },
        "mechanism": dict(facts.mechanism),
        "sampling": {
            "method": "poisson",
            "records": plan.num_records,
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
        "released": sentences.released(
            uses_public_data=facts.mechanism.get("num_anchors") is not None, private=not not_private
        ),
        "not_covered": sentences.not_covered(
            logged=facts.logged,
            left=facts.left,
            log_nonprivate=facts.log_nonprivate,
            has_public_data=facts.public_data is not None,
            carried_steps=carried if carried or account.trusted else None,
            builds_on=account.builds_on,
        ),
        "logs": {
            "log_nonprivate": facts.log_nonprivate,
            "logged_by_training_step": list(facts.logged),
            "left_unprotected": facts.left,
        },
        "utility": sentences.UTILITY,
        "selection": _selection(spent, account.plan, facts.selection_before, ended=ended),
        "randomness": {
            "generator": facts.generator,
            "secret": not {sentences.SEEDED, sentences.SEEDED_BEFORE} & {*not_private},
            "explanation": sentences.randomness(facts.generator, facts.device),
        },
        "software": {**facts.software, "device": facts.device, "processes": facts.processes},
    }


def _selection(spent: Figure, plan: PrivacyPlan, before: Mapping[str, Any] | None, *, ended: bool) -> dict[str, Any]:
    """The run alone; or what a sweep counted before the run continued, which is then no longer complete."""
    if before is None:
        return single_selection(spent, plan.delta, plan.accountant, complete=ended)
    words = str(before["explanation"]).removesuffix(sentences.CONTINUED)
    return {**before, "complete": False, "explanation": words + sentences.CONTINUED}


def why_not_private(account: PrivacyAccount, facts: RunFacts) -> list[str]:
    """Every reason why the run is not private; none if it is."""
    reasons = []
    if account.noise_multiplier == 0:
        reasons.append(sentences.NO_NOISE)
    if any(math.isinf(part.clip) for part in account.plan.release.parts):
        reasons.append(sentences.INFINITE_CLIP)
    if facts.generator == "seeded":
        reasons.append(sentences.SEEDED)
    elif not account.private or sentences.SEEDED in facts.not_private_before:
        reasons.append(sentences.SEEDED_BEFORE)
    return list(dict.fromkeys((*reasons, *(r for r in facts.not_private_before if r != sentences.SEEDED))))


def _progress(account: PrivacyAccount) -> str:
    planned = account.plan.planned_steps
    return f"{account.steps} of {planned} steps" if planned else f"{account.steps} steps"


def release_section(plan: PrivacyPlan) -> dict[str, Any]:
    """What a step releases, and how much one record can change it."""
    release = plan.release
    names = {"embedding": release.embedding, "residual" if release.embedding else "gradient": release.residual}
    bounds = [f"the {name} by at most {part.clip:g}" for name, part in names.items() if part is not None]
    together = "; with joint clipping the two share one bound" if release.clipping == "joint" else ""
    return {
        "noise_multiplier": release.noise_multiplier,
        "clipping": release.clipping,
        "embedding": _part(release.embedding),
        "residual": _part(release.residual),
        "sensitivity": f"One record changes the sum of {' and of '.join(bounds)} in Euclidean norm{together}; sums are "
        f"divided by the fixed {plan.expected_batch_size}, whatever was drawn.",
    }


def _part(part: Part | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {"clip": figure(part.clip), "sigma": part.sigma, "noise_std": part.noise_std}
