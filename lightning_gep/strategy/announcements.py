"""What the user is told when training starts: the guarantee, and what is kept from the logs."""

from collections.abc import Sequence

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_gep.algorithm.thresholds import Thresholds
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.strategy.settings import PrivacySettings


def announce(settings: PrivacySettings, chosen: Thresholds, plan: PrivacyPlan, gradients: str) -> None:
    """The mechanism in numbers, how gradients are computed, and a warning where nothing is private."""
    parts = (("embedding", plan.release.embedding), ("residual", plan.release.residual))
    noise = ", ".join(f"{name}: clip {p.clip:g}, σ {p.sigma:.4g}" for name, p in parts if p is not None)
    target = "no target" if plan.target_epsilon is None else f"ε = {plan.target_epsilon:g}"
    rank_zero_info(
        f"GEPStrategy: {settings.mechanism} for {target}, δ = {plan.delta:g} by {plan.accountant}; noise multiplier "
        f"{plan.event.noise_multiplier:.4g} ({noise}); "
        + (f"k = {chosen.k}; " if settings.uses_basis else "")
        + f"sampling rate {plan.sample_rate:.4g}, {plan.planned_steps or 'any number of'} steps; gradients by "
        f"{gradients}."
    )
    if not settings.private:
        rank_zero_warn(f"generator={settings.generator!r} can be repeated: this run is NOT private.")
    if plan.event.noise_multiplier == 0:
        rank_zero_warn("There is no noise: this run is NOT private (ε = ∞).")


def announce_logs(names: Sequence[str], *, passed_on: bool) -> None:
    """What training_step logs, if it is dropped."""
    if not passed_on:
        rank_zero_info(
            f"training_step logs {', '.join(names)}: computed from private records, so not passed on. "
            "log_nonprivate=True logs it as nonprivate/<name>."
        )


def announce_kept(names: Sequence[str], *, made_up: bool) -> None:
    """Where training_step keeps what it computed, and of which records that is."""
    rank_zero_info(
        f"training_step keeps values in {', '.join(names[:3])}{', …' if len(names) > 3 else ''}. After every step they "
        f"are those of a few {'made-up' if made_up else 'public'} records, on which it is run once more: nothing of "
        "private records is kept."
    )


def announce_later_log(name: str, hook: str, *, passed_on: bool) -> None:
    """What another hook of training logs, when it does so first."""
    rank_zero_info(
        f"{hook} logs {name} in training, which may be computed from private records. "
        + (f"It is logged as nonprivate/{name}." if passed_on else "It is not passed on.")
        + " Values of validation and test are logged by their own hooks."
    )
