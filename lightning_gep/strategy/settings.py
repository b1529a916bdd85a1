"""The arguments of GEPStrategy, with their defaults and checks.

This module imports neither torch nor Lightning, so that commands can read the defaults without waiting for them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightning_gep.arguments import boolean, finite_positive, not_negative, one_of, positive_integer, share
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import check_delta, make_accountant, power_of_ten_below
from lightning_gep.privacy.calibration import check_one_target
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import MECHANISMS, Clipping, Mechanism, Split, make_mechanism

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from lightning_gep.algorithm.groups import Grouping

# Literals, so that an editor completes the values.
Auto = Literal["auto"]
MechanismName = Literal["gep", "bgep", "gp", "spectral"]
AccountantName = Literal["pld", "rdp", "prv"]
Generator = Literal["system", "secure", "seeded"]
SubspaceName = Literal["tracked", "power", "random"]
BackendName = Literal["auto", "functional", "ghost", "hooks", "loop"]
StartMethod = Literal["popen", "fork", "forkserver", "spawn"]

STEPS_BETWEEN_SPECTRA, ANCHORS_OF_SPECTRUM = 4, 50
"""Schedule of mechanism="spectral" in one process. The published results had 100 anchors: 50 have about 2 % more noise
in the first dozens of steps and as much later, for half the cost of a refresh (docs/spectral.md)."""
STEPS_BETWEEN_SUMS = 12
"""Steps between two refreshes of mechanism="spectral" with several processes, which add up about as many numbers at a
refresh as at a step: a tenth more bytes for a convolutional network. Each refresh has as many more anchors."""


@dataclass(frozen=True)
class PrivacySettings:
    """The settings that decide the guarantee, and what is published beside the weights."""

    epsilon: float | None = None
    delta: float | None = None
    k: int | Auto = "auto"
    noise_multiplier: float | None = None
    accountant: AccountantName = "pld"
    generator: Generator = "system"
    seed: int = 0
    mechanism: MechanismName = "gep"
    clip_embedding: float | Auto = "auto"
    clip_residual: float | Auto = "auto"
    clip_norm: float | Auto = 1.0
    clipping: Clipping = "separate"
    split: Split = "optimal"
    log_nonprivate: bool = False
    trust_checkpoint: bool = False
    public_data_is_disjoint: bool = False

    def __post_init__(self) -> None:
        split: Any = self.split
        if isinstance(split, list):  # from a configuration file
            object.__setattr__(self, "split", tuple(split))
        check_one_target(self.epsilon, self.noise_multiplier)
        if self.epsilon is not None:
            finite_positive("epsilon", self.epsilon, "Give the privacy budget, e.g. 8.0.")
        if self.noise_multiplier is not None:
            not_negative("noise_multiplier", self.noise_multiplier, "It is the step's σ; 0 means no privacy.")
        if self.delta is not None:
            check_delta(self.delta)
        if self.k != "auto":
            positive_integer("k", self.k, "It is the number of basis vectors, e.g. 1000, or 'auto'.")
        one_of("generator", self.generator, get_args(Generator))
        one_of("mechanism", self.mechanism, MECHANISMS)
        make_accountant(self.accountant)
        self.make_mechanism()
        boolean("log_nonprivate", self.log_nonprivate)
        boolean("trust_checkpoint", self.trust_checkpoint)
        boolean("public_data_is_disjoint", self.public_data_is_disjoint)

    @property
    def private(self) -> bool:
        """Whether sampling and noise are secret: nobody can repeat the draws."""
        return self.generator != "seeded"

    @property
    def uses_basis(self) -> bool:
        """Whether the mechanism projects gradients onto an anchor subspace."""
        return MECHANISMS[self.mechanism].uses_basis

    @property
    def uses_public_data(self) -> bool:
        """Whether the mechanism needs the gradients of public records."""
        return MECHANISMS[self.mechanism].uses_public_data

    @property
    def unused(self) -> tuple[str, ...]:
        """The thresholds that were given although the mechanism has others."""
        used = MECHANISMS[self.mechanism].thresholds()
        names = ("clip_embedding", "clip_residual", "clip_norm")
        return tuple(name for name in names if name not in used and getattr(self, name) != DEFAULTS[name])

    @property
    def chosen_on_public_data(self) -> tuple[str, ...]:
        """The settings the mechanism needs that are "auto"."""
        needed = (*(("k",) if self.uses_basis else ()), *MECHANISMS[self.mechanism].thresholds())
        return tuple(name for name in needed if getattr(self, name) == "auto")

    def with_choices(self, **choices: Any) -> "PrivacySettings":
        """These settings with every "auto" replaced by the choice, or by 1, which lets other settings be checked."""
        auto = (name for name in ("k", "clip_embedding", "clip_residual", "clip_norm") if getattr(self, name) == "auto")
        return replace(self, **{name: choices.get(name, 1 if name == "k" else 1.0) for name in auto})

    def make_mechanism(self) -> Mechanism:
        """The mechanism with its thresholds; 1 stands in for a threshold that is still "auto"."""
        thresholds = {name: getattr(self, name) for name in MECHANISMS[self.mechanism].thresholds()}
        known = {name: 1.0 if value == "auto" else value for name, value in thresholds.items()}
        return make_mechanism(self.mechanism, clipping=self.clipping, split=self.split, **known)

    def plan(
        self,
        *,
        num_records: int,
        batch_size: int,
        steps: int | None,
        num_parameters: int,
        noise_multiplier: float | None = None,
        unit: str = "record",
    ) -> PrivacyPlan:
        """The plan of a run; a given `noise_multiplier` replaces the calibration."""
        return PrivacyPlan.make(
            self.make_mechanism(),
            num_records=num_records,
            expected_batch_size=batch_size,
            delta=power_of_ten_below(1 / num_records) if self.delta is None else self.delta,
            epsilon=self.epsilon if noise_multiplier is None else None,
            noise_multiplier=self.noise_multiplier if noise_multiplier is None else noise_multiplier,
            steps=steps,
            k=(1 if self.k == "auto" else self.k) if self.uses_basis else None,
            num_parameters=num_parameters,
            accountant=self.accountant,
            unit=unit,
        )


@dataclass(frozen=True)
class CostSettings:
    """The settings that decide the cost of a step and the quality of the subspace, but not the guarantee."""

    groups: "Grouping" = "balanced"
    subspace: SubspaceName = "tracked"
    num_anchors: int | None = None
    refresh_every: int | None = None
    decay: float = 0.95
    power_iterations: int = 1
    precondition: bool = False
    residual_memory: float = 0.0
    microbatch_size: int | Auto = "auto"
    gradients: BackendName = "auto"
    aux_dataloader: "DataLoader[Any] | Callable[[], DataLoader[Any]] | None" = None
    start_method: StartMethod = "popen"
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        one_of("subspace", self.subspace, get_args(SubspaceName))
        one_of("gradients", self.gradients, get_args(BackendName))
        one_of("start_method", self.start_method, get_args(StartMethod))
        boolean("precondition", self.precondition)
        share("residual_memory", self.residual_memory, "It is the share of the mean that a step keeps; 0: none.")
        finite_positive("timeout", self.timeout, "It is the number of seconds to wait for another process.")
        positive_integer("num_anchors", self.anchors, "It is the number of public records used by each refresh.")
        if self.microbatch_size != "auto":
            advice = "It is the number of records whose gradients are held at a time, or 'auto'."
            positive_integer("microbatch_size", self.microbatch_size, advice)

    @property
    def anchors(self) -> int:
        """Public records of a refresh: by default the paper's 2000 for a cold start, 50 for a tracked subspace."""
        return (2000 if self.subspace == "power" else 50) if self.num_anchors is None else self.num_anchors

    @property
    def interval(self) -> int:
        """Steps between two refreshes."""
        return 1 if self.refresh_every is None else self.refresh_every

    def over(self, world_size: int, mechanism: MechanismName) -> "CostSettings":
        """These settings, with the default of `refresh_every` for so many processes."""
        if self.refresh_every is not None or mechanism != "spectral":
            return self
        steps = STEPS_BETWEEN_SPECTRA if world_size == 1 else STEPS_BETWEEN_SUMS
        anchors = (self.num_anchors or ANCHORS_OF_SPECTRUM) * steps // STEPS_BETWEEN_SPECTRA
        return replace(self, refresh_every=steps, num_anchors=anchors)

    def anchors_due(self, first: int, *, filling: bool) -> int:
        """Public records of the next refresh; the first refresh of a tracked subspace takes at least `first`."""
        return max(self.anchors, first) if filling and self.subspace == "tracked" else self.anchors

    @property
    def sweeps(self) -> int:
        """How often a refresh reads each of its public records."""
        return self.power_iterations if self.subspace == "power" else 1


DEFAULTS: dict[str, Any] = {field.name: field.default for field in (*fields(PrivacySettings), *fields(CostSettings))}
"""The default of every argument of GEPStrategy."""


def settings_from(arguments: Mapping[str, Any]) -> tuple[PrivacySettings, CostSettings]:
    """Both kinds of settings from the arguments of GEPStrategy; names of neither kind are ignored."""
    privacy, cost = (
        {field.name: arguments[field.name] for field in fields(kind)} for kind in (PrivacySettings, CostSettings)
    )
    made = PrivacySettings(**privacy), CostSettings(**cost)
    if made[1].gradients == "ghost" and made[0].uses_basis:
        raise ConfigurationError(
            f"gradients='ghost' never forms the gradients that mechanism={made[0].mechanism!r} projects. Use "
            "mechanism='gp' or 'spectral', or gradients='auto'.",
            setting="gradients",
        )
    return made
