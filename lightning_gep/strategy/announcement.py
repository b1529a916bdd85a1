"""What the user is told about a fit: a block at its start, and each further name that training logs."""

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_gep.algorithm.thresholds import basis_numbers, limited_by_memory
from lightning_gep.privacy.files import CARD_PAGE
from lightning_gep.privacy.fixed_point import released_bytes
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import MECHANISMS
from lightning_gep.strategy.fit import Fit
from lightning_gep.strategy.settings import PrivacySettings


def announce(settings: PrivacySettings, fit: Fit, *, trial: bool) -> None:
    """A block of a few lines: the guarantee, the mechanism in numbers, what is withheld, and where the card will be.

    A `trial` by fast_dev_run, which is there to try out code, costs as much as a whole run: there is a warning.
    """
    plan = fit.account.plan
    private = fit.account.private and plan.event.noise_multiplier > 0
    lines = {
        "guarantee": (_guarantee(plan) if private else "NOT private") + _steps(plan),
        "mechanism": _mechanism(settings, fit),
        "gradients": fit.gradients.backend.reason,
        "memory": _memory(fit),
        "step": fit.slow_parts,
        "not logged": "" if settings.log_nonprivate else ", ".join(fit.logged),
        "kept": _kept(fit),
        "card": "" if fit.card is None else str(fit.card.directory / CARD_PAGE),
    }
    if lines["not logged"]:
        lines["not logged"] += " (log_nonprivate=True logs it as nonprivate/<name>)"
    shown = (f"  {name:<10}  {text}" for name, text in lines.items() if text)
    rank_zero_info("\n".join(("GEPStrategy", *shown)))
    if not settings.private:
        rank_zero_warn(f"generator={settings.generator!r} draws can be repeated: this run is NOT private.")
    if plan.event.noise_multiplier == 0:
        rank_zero_warn("There is no noise: this run is NOT private (ε = ∞).")
    if trial and plan.target_epsilon is not None:
        rank_zero_warn(
            f"fast_dev_run spends the whole ε = {plan.target_epsilon:g} on {plan.planned_steps} step(s), with noise "
            "calibrated for it, so results and noise are not those of the real run. Discard these weights, or try "
            "out the code on public data."
        )


def _guarantee(plan: PrivacyPlan) -> str:
    target = "counted, without a target" if plan.target_epsilon is None else f"at most {plan.target_epsilon:g}"
    whose = "" if plan.unit == "record" else f", for one {plan.unit} with all their records"
    return f"private: ε {target}, δ = {plan.delta:g}, by {plan.accountant}{whose}"


def _steps(plan: PrivacyPlan) -> str:
    steps = "any number of" if plan.planned_steps is None else str(plan.planned_steps)
    return f", in {steps} steps at rate {plan.sample_rate:.4g}"


def _mechanism(settings: PrivacySettings, fit: Fit) -> str:
    """The numbers of a step; σ where there are two of them."""
    release = fit.account.plan.release
    clips, sigmas = (", ".join(f"{getattr(part, name):.4g}" for part in release.parts) for name in ("clip", "sigma"))
    several = len(release.parts) > 1
    limited = settings.k == "auto" and limited_by_memory(fit.chosen.k, fit.gradients.groups.sizes)
    k = f", k = {fit.chosen.k}" if settings.uses_basis else ""
    words = f"{settings.mechanism}{k}; noise multiplier {fit.account.plan.event.noise_multiplier:.4g}; "
    words += f"clips {clips}; σ {sigmas}" if several else f"clip {clips}"
    return words + ("; k is what 512 MB hold (set k for more)" if limited and settings.uses_basis else "")


def _memory(fit: Fit) -> str:
    """What privacy adds to the memory of training, and to what processes send."""
    gradients, release, world = fit.gradients, fit.account.plan.release, fit.sampler.world_size
    groups, k = gradients.groups, 0 if release.embedding is None else fit.chosen.k
    blocks = f"{len(groups.sizes)} group{'s' * (len(groups.sizes) > 1)}"
    rows = 4 * gradients.microbatch * gradients.backend.held_per_record
    basis = f"basis {_megabytes(4 * basis_numbers(k, groups.sizes))} in {blocks}; " if k else ""
    sent = released_bytes(release, (k, groups.num_parameters), fit.account.plan.expected_batch_size)
    reduced = f"; {_megabytes(sent)} all-reduced a step" if world > 1 else ""
    held = f"chunks of {gradients.microbatch}: {_megabytes(rows)}"
    return f"{groups.num_parameters:,} parameters; {basis}{held}{reduced}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


def _kept(fit: Fit) -> str:
    """What training_step writes to attributes, which is replaced."""
    names = f"{', '.join(fit.gradients.kept[:3])}{', …' if len(fit.gradients.kept) > 3 else ''}"
    source = "public" if fit.has_public_data else "random"
    return f"what training_step writes to {names}, of a few {source} records instead of private ones" if names else ""


def warn_of_unused(settings: PrivacySettings) -> None:
    """A warning of thresholds that were given although the mechanism has others."""
    if settings.unused:
        used = " and ".join(MECHANISMS[settings.mechanism].thresholds())
        rank_zero_warn(f"mechanism={settings.mechanism!r} clips by {used}: {', '.join(settings.unused)} has no effect.")


def announce_later_log(name: str, hook: str, *, log_nonprivate: bool) -> None:
    """What another training hook logs, the first time it does."""
    rank_zero_info(
        f"{hook} logs {name} in training, which may depend on private records. "
        + (f"It is logged as nonprivate/{name}." if log_nonprivate else "It is not passed on.")
        + " Log validation and test values in their own hooks."
    )
