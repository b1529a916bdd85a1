"""What training logs is withheld, because it may depend on private records; and what the user is told at the start."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
from tqdm import tqdm

from lightning_gep.algorithm.thresholds import basis_numbers, limited_by_memory
from lightning_gep.privacy.files import CARD_PAGE
from lightning_gep.privacy.fixed_point import released_bytes
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import MECHANISMS
from lightning_gep.strategy.internals import attached_trainer, current_hook
from lightning_gep.strategy.settings import PrivacySettings

if TYPE_CHECKING:
    from lightning_gep.strategy.fit import Fit

OWN_NAMES = {
    "ε",
    *(f"privacy/{name}" for name in ("epsilon", "delta", "noise_multiplier", "steps", "private", "remaining_epsilon")),
    *(f"performance/{name}" for name in ("steps_per_second", "records_per_second", "peak_memory_mb")),
}
"""What the callbacks of this package log in training; none of it depends on the records."""
NOT_PRIVATE = "nonprivate/"
EVALUATION = ("validation", "on_validation", "test", "on_test", "predict", "on_predict", "on_sanity")
"""Prefixes of hooks that see no training records."""


SECONDS_UNNOTICED = 3.0


def progress_bar(what: str, total: int) -> Any:
    """A bar with the time that is left, on a terminal, once something takes longer than nobody notices."""
    hidden = None if rank_zero_only.rank == 0 else True  # type: ignore[attr-defined]  # None: if it is no terminal
    return tqdm(total=total, desc=what, unit=" records", delay=SECONDS_UNNOTICED, leave=False, disable=hidden)


class LogRecorder:
    """Replaces `self.log` and `self.log_dict`, and remembers what would have been logged."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any, dict[str, Any]]] = []

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Remember one value."""
        if args:
            kwargs["prog_bar"] = args[0]
        self.entries.append((name, value, kwargs))

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        """Remember several values."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    @property
    def names(self) -> list[str]:
        """Every name once, in order."""
        return list(dict.fromkeys(name for name, _, _ in self.entries))


@contextmanager
def recorded_logs(module: LightningModule) -> Iterator[LogRecorder]:
    """Inside, nothing that the module logs reaches a logger, a callback or the progress bar.

    `self.logger` does nothing. A tracker called without Lightning, such as wandb.log(), is not intercepted.
    """
    recorder = LogRecorder()
    own = vars(module)
    before: dict[str, Any] = {name: own[name] for name in ("log", "log_dict") if name in own}
    own.update(log=recorder.log, log_dict=recorder.log_dict)
    trainer = attached_trainer(module)
    loggers = [] if trainer is None else trainer.loggers
    try:
        if trainer is not None:
            trainer.loggers = [DummyLogger() for _ in loggers]
        yield recorder
    finally:
        if trainer is not None:
            trainer.loggers = loggers
        own.update(before)  # an outer recorder continues to record
        for name in {"log", "log_dict"} - before.keys():
            own.pop(name, None)


class LogGuard:
    """Replaces `log` and `log_dict` of a module and of its trainer's callbacks during training.

    Guarantee: what a training hook such as on_train_epoch_end logs is not passed on, because it may depend on records,
    or on losses and metrics that training_step kept. With `pass_on` it is logged as `nonprivate/<name>`. `notice` gets
    each name once, before anything is passed on. What validation and test hooks log is passed on unchanged.
    """

    def __init__(
        self, module: LightningModule, notice: Callable[[str, str], None], *, pass_on: bool, batch_size: int
    ) -> None:
        self.module, self.notice, self.pass_on, self.batch_size = module, notice, pass_on, batch_size
        self._log = module.log
        self._seen: set[str] = set()
        for holder in self._holders():
            holder.log, holder.log_dict = self.log, self.log_dict

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Pass on, rename or drop a value."""
        hook = current_hook(self.module)
        if hook is None or hook.startswith(EVALUATION):
            self._log(name, value, *args, **kwargs)
            return
        # Lightning would read the batch size from the batch to weight means over an epoch; the expected one is public.
        kwargs.setdefault("batch_size", self.batch_size)
        if name in OWN_NAMES or (self.pass_on and name.startswith(NOT_PRIVATE)):
            self._log(name, value, *args, **kwargs)
            return
        if name not in self._seen:
            self._seen.add(name)
            self.notice(name, hook)
        if self.pass_on:
            self._log(f"{NOT_PRIVATE}{name}", value, *args, **kwargs)

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        """The same for several values."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LogGuard":
        return self  # a copy of the module, as for weight averaging, belongs to the same training

    def __reduce__(self) -> tuple[type[LogRecorder], tuple[()]]:
        return LogRecorder, ()  # a module that is pickled leaves the training behind

    def remove(self) -> None:
        """Let everything be logged again."""
        for holder in self._holders():
            for name in ("log", "log_dict"):
                vars(holder).pop(name, None)

    def _holders(self) -> list[Any]:
        # The trainer has given its callbacks the functions of the module.
        return [self.module, *attached_trainer(self.module).callbacks]


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, nothing is printed or warned of: the user's code is tried many times, on unusual records."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def announce(settings: PrivacySettings, fit: "Fit", card: Path | None) -> None:
    """A block of a few lines: the guarantee, the mechanism in numbers, what is withheld, and where the card will be."""
    plan = fit.account.plan
    parts = (("embedding", plan.release.embedding), ("residual", plan.release.residual))
    clips = "; ".join(
        f"{name if plan.release.embedding else 'gradient'} to {p.clip:g}, noise σ {p.sigma:.4g}"
        for name, p in parts
        if p is not None
    )
    private = fit.account.private and plan.event.noise_multiplier > 0
    lines = {
        "guarantee": _guarantee(plan) if private else "NOT private",
        "mechanism": f"{settings.mechanism}; noise multiplier {plan.event.noise_multiplier:.4g}" + _k(settings, fit),
        "clipping": clips,
        "sampling": f"each {plan.unit} with probability {plan.sample_rate:.4g} in each of {_steps(plan)} steps",
        "gradients": fit.gradients.backend.reason,
        "memory": _memory(fit),
        "step": "" if fit.step_cost is None else fit.step_cost.in_words(fit.chosen.k, fit.cost),
        "not logged": "" if settings.log_nonprivate else ", ".join(fit.logged),
        "kept": _kept(fit),
        "card": "" if card is None else str(card / CARD_PAGE),
    }
    if lines["not logged"]:
        lines["not logged"] += " (of private records; log_nonprivate=True logs it as nonprivate/<name>)"
    shown = (f"  {name:<10}  {text}" for name, text in lines.items() if text)
    rank_zero_info("\n".join(("GEPStrategy", *shown)))
    if not settings.private:
        rank_zero_warn(f"generator={settings.generator!r} draws can be repeated: this run is NOT private.")
    if plan.event.noise_multiplier == 0:
        rank_zero_warn("There is no noise: this run is NOT private (ε = ∞).")


def _guarantee(plan: PrivacyPlan) -> str:
    target = "counted, without a target" if plan.target_epsilon is None else f"at most {plan.target_epsilon:g}"
    whose = "" if plan.unit == "record" else f", for one {plan.unit} with all their records"
    return f"private: ε {target}, δ = {plan.delta:g}, by {plan.accountant}{whose}"


def _k(settings: PrivacySettings, fit: "Fit") -> str:
    if not settings.uses_basis:
        return ""
    limited = settings.k == "auto" and limited_by_memory(fit.chosen.k, fit.gradients.groups.sizes)
    return f"; k = {fit.chosen.k}" + (", which keeps the basis below 512 MB (set k for more)" if limited else "")


def _memory(fit: "Fit") -> str:
    """What privacy adds to the memory of training, and to what processes send."""
    gradients, release, world = fit.gradients, fit.account.plan.release, fit.sampler.world_size
    groups, k = gradients.groups, 0 if release.embedding is None else fit.chosen.k
    blocks = f"{len(groups.sizes)} group{'s' * (len(groups.sizes) > 1)}"
    rows = 4 * gradients.microbatch * gradients.backend.held_per_record
    basis = f"basis {_megabytes(4 * basis_numbers(k, groups.sizes))} in {blocks}; " if k else ""
    sent = released_bytes(release, (k, groups.num_parameters), fit.account.plan.expected_batch_size)
    reduced = f"; {_megabytes(sent)} all-reduced a step" if world > 1 else ""
    held = f"{_megabytes(rows)} of gradients ({gradients.microbatch} {fit.account.plan.counted} at a time)"
    return f"{groups.num_parameters:,} parameters; {basis}{held}{reduced}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


def _steps(plan: PrivacyPlan) -> str:
    return "any number of" if plan.planned_steps is None else str(plan.planned_steps)


def _kept(fit: "Fit") -> str:
    """What training_step writes to attributes, which is replaced."""
    names = f"{', '.join(fit.gradients.kept[:3])}{', …' if len(fit.gradients.kept) > 3 else ''}"
    source = "public" if fit.has_public_data else "random"
    return f"what training_step writes to {names}, of a few {source} records instead of private ones" if names else ""


def warn_of_unused(settings: PrivacySettings) -> None:
    """A warning of thresholds that were given although the mechanism has others."""
    if settings.unused:
        used = " and ".join(MECHANISMS[settings.mechanism].thresholds())
        names = ", ".join(settings.unused)
        rank_zero_warn(f"mechanism={settings.mechanism!r} clips by {used}: {names} has no effect.")


def announce_trial_run(plan: PrivacyPlan) -> None:
    """A warning that fast_dev_run, which is there to try out code, costs as much as a whole run."""
    if plan.target_epsilon is not None:
        rank_zero_warn(
            f"fast_dev_run spends the whole ε = {plan.target_epsilon:g} on {plan.planned_steps} step(s), with noise "
            "calibrated for it, so results and noise are not those of the real run. Discard these weights, or try "
            "out the code on public data."
        )


def announce_later_log(name: str, hook: str, *, log_nonprivate: bool) -> None:
    """What another training hook logs, the first time it does."""
    rank_zero_info(
        f"{hook} logs {name} in training, which may depend on private records. "
        + (f"It is logged as nonprivate/{name}." if log_nonprivate else "It is not passed on.")
        + " Log validation and test values in their own hooks."
    )
