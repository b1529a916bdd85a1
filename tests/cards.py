"""Cards without training, for the tests of what is done with them."""

from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.accounting import SampledGaussian
from lightning_gep.privacy.card.content import RunFacts, run_card
from lightning_gep.privacy.card.sweep import sweep_selection
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import GEP
from lightning_gep.privacy.selection import RunCost

MECHANISM = {
    "name": "gep", "noise_multiplier": 2.0, "clipping": "separate", "k": 10, "num_parameters": 100, "split": "optimal",
    "embedding": {"clip": 1.0, "sigma": 3.0, "noise_std": 3.0},
    "residual": {"clip": 0.5, "sigma": 2.7, "noise_std": 1.35},
    "groups": [{"name": "first", "parameters": 60, "k": 6}, {"name": "second", "parameters": 40, "k": 4}],
    "subspace": "tracked", "num_anchors": 50, "refresh_every": 1, "decay": 0.98, "power_iterations": None,
    "chosen_on_public_data": ["k"], "sensitivity": "One record changes little.",
}  # fmt: skip
PUBLIC = {
    "name": "RandomLabels(Photographs)", "records": 5000, "hashed_records": 2000, "sha256": "ab" * 32,
    "note": "inputs without labels", "compared_records": 2000, "compared_with": "all training records",
    "used_for": "subspace",
}  # fmt: skip
SOFTWARE = {"python": "3.11", "torch": "2.9", "git_revision": "c0ffee" * 6 + "abcd", "git_dirty": True, "platform": "X"}


def account(run_id="a" * 32, *, steps=100, planned=100, sigma=2.0):
    plan = PrivacyPlan.make(
        GEP(1.0, 0.5), num_records=1000, expected_batch_size=50, delta=1e-4, noise_multiplier=sigma, steps=planned,
        k=10, num_parameters=100, accountant="rdp",
    )  # fmt: skip
    return PrivacyAccount(plan, run_id=run_id, steps=steps)


def a_card(run_id="a" * 32, status="finished", *, steps=100, sigma=2.0, **facts):
    """A run's card."""
    defaults = {
        "mechanism": {**MECHANISM, "noise_multiplier": sigma},
        "generator": "system",
        "device": "cpu",
        "software": SOFTWARE,
        "public_data": PUBLIC,
        "logged": ("train/loss",),
    }
    return run_card(account(run_id, steps=steps, sigma=sigma), RunFacts(**{**defaults, **facts}), status)


def selection_of(*cards, repetitions=None):
    """The selection block of a sweep of these runs."""
    costs = [
        RunCost(
            SampledGaussian(card["sampling"]["sample_rate"], card["mechanism"]["noise_multiplier"]),
            *(card["steps"][name] for name in ("counted", "planned")),
            *(card["guarantee"][name] for name in ("delta", "accountant", "private")),
        )
        for card in cards
    ]
    return sweep_selection(costs, repetitions=repetitions)
