"""What gep-plan plans: the runs that the overrides describe, composed as gep-train does, and their public sizes.

Data and model are built for N and p, unless these are given; nothing is trained.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from lightning_gep.arguments import positive_integer
from lightning_gep.cli.configs import check_keys, config_directory
from lightning_gep.cli.failures import cause_of, one_line_errors
from lightning_gep.cli.hydra_sweeper import combinations_of
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.reporting.records import NO_PRIVACY
from lightning_gep.strategy.settings import DEFAULTS, CostSettings, PrivacySettings

REFUSED = {
    "fast_dev_run": "is a trial of the code, not a run that can be planned. Remove it.",
    "accumulate_grad_batches": "is refused in training. Use 1, and a larger data.batch_size.",
    "overfit_batches": "is refused in training, because it is not Poisson sampling. Use 0.",
}
READ = {*REFUSED, "max_epochs", "max_steps", "limit_train_batches", "devices", "num_nodes"}
"""The settings of the trainer that a plan depends on."""


@dataclass(frozen=True)
class Job:
    """One combination of overrides: its configuration, the settings of its strategy, and its sizes."""

    config: DictConfig
    settings: PrivacySettings
    size: RunSize
    labels: Mapping[str, str]
    """The values that tell this combination from the others."""

    @property
    def one_line_errors(self) -> AbstractContextManager[None]:
        """Inside, errors name this combination and the configuration key."""
        return one_line_errors(_words(self.labels), self.config)


def make_jobs(
    overrides: Sequence[str], records: int | None, parameters: int | None
) -> tuple[list[Job], dict[str, list[str]]]:
    """A job for every combination of the values given, in Hydra's own grammar, and all values given for each key.

    Args:
        overrides: As for gep-train.
        records: The number of training records, so that no data has to be built.
        parameters: The number of trainable parameters, so that no model has to be built.

    Raises:
        ConfigurationError: In one line, with the configuration key.

    """
    sizes = Sizes(records, parameters)
    with one_line_errors(), initialize_config_dir(str(config_directory()), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = [_parse(parser, override) for override in overrides]
        several = {override.get_key_element() for override in parsed if override.is_sweep_override()}
        combinations = combinations_of(parsed)
        jobs = [_make_job(combination, several, sizes) for combination in combinations]
    given: dict[str, dict[str, None]] = {}
    for key, _, value in (part.partition("=") for combination in combinations for part in combination):
        given.setdefault(key.lstrip("+"), {})[value] = None
    return jobs, {key: list(values) for key, values in given.items()}


def privacy_settings(config: DictConfig) -> PrivacySettings:
    """The settings of the strategy, checked; `privacy` overrides `mechanism`, as in training."""
    groups: Any = {group: OmegaConf.to_container(config[group], resolve=True) for group in ("mechanism", "privacy")}
    for group, values in groups.items():
        groups[group] = {name: value for name, value in values.items() if not name.startswith("_")}
        _check_names(group, groups[group], DEFAULTS, "GEPStrategy")
    given = {**groups["mechanism"], **groups["privacy"]}
    parts = [
        {f.name: given[f.name] for f in fields(kind) if f.name in given} for kind in (PrivacySettings, CostSettings)
    ]
    CostSettings(**parts[1])
    return PrivacySettings(**parts[0])


class Sizes:
    """The sizes of runs; data and models that several combinations share are built once."""

    def __init__(self, records: int | None = None, parameters: int | None = None) -> None:
        self.records, self.parameters = records, parameters
        self._read: dict[str, tuple[int, bool]] = {}
        self._num_parameters: dict[str, int] = {}

    def of(self, config: DictConfig) -> RunSize:
        """The sizes of the run that a configuration describes."""
        trainer: Any = OmegaConf.to_container(config.trainer, resolve=True)
        limit = trainer.get("limit_train_batches")
        num_records, batch_size, drop_last = self._data(config)
        return RunSize(
            num_records=num_records,
            num_parameters=self._model(config),
            batch_size=batch_size,
            drop_last=drop_last,
            max_epochs=trainer.get("max_epochs"),
            max_steps=trainer.get("max_steps", -1),
            limit_train_batches=1.0 if limit is None else limit,
            devices=_devices(trainer),
        )

    def _data(self, config: DictConfig) -> tuple[int, int, bool]:
        """Number of records, batch size and whether the last, smaller batch of an epoch is dropped."""
        batch_size = OmegaConf.select(config, "data.batch_size")
        if self.records is not None:
            if batch_size is None:
                raise ConfigurationError("data.batch_size is not set. It is the mean number of records per step.")
            return self.records, batch_size, False
        data: Any = OmegaConf.to_container(config.data, resolve=True)
        key = repr({**data, "batch_size": None})
        if key not in self._read:
            loader = _build("data", lambda: _train_loader(config))
            if loader.batch_size != batch_size:
                return len(loader.dataset), loader.batch_size, loader.drop_last
            # The module passes its batch size on, so that data, which is slow to read, is read once for all sizes.
            self._read[key] = len(loader.dataset), loader.drop_last
        records, drop_last = self._read[key]
        return records, batch_size, drop_last

    def _model(self, config: DictConfig) -> int:
        if self.parameters is not None:
            return self.parameters
        groups = config.mechanism.get("groups", "balanced")
        key = repr((OmegaConf.to_container(config.model, resolve=True), groups))
        if key not in self._num_parameters:
            self._num_parameters[key] = _build("model", lambda: _num_parameters(config, groups))
        return self._num_parameters[key]


def _make_job(combination: list[str], several: set[str], sizes: Sizes) -> Job:
    parts = (part.partition("=") for part in combination)
    labels = {key.lstrip("+"): value for key, _, value in parts if key in several}
    with one_line_errors(_words(labels)):
        config = _compose(combination)
        with one_line_errors(config=config):
            return Job(config, privacy_settings(config), sizes.of(config), labels)


def _parse(parser: OverridesParser, override: str) -> Override:
    try:
        return parser.parse_override(override)
    except HydraException as error:
        raise ConfigurationError(f"{override!r} is not an override ({error}). Write key=value.") from error


def _compose(combination: list[str]) -> DictConfig:
    """The configuration as gep-train composes it, with all names checked."""
    try:
        config = compose("train", combination)
    except HydraException:
        raise
    except ValueError as error:  # raised by Hydra without the override
        raise ConfigurationError(f"{' '.join(combination)}: {error}") from error
    check_keys(config)
    if config.mechanism.mechanism == NO_PRIVACY:
        raise ConfigurationError(
            "mechanism=none adds no noise, so there is nothing to plan. Choose another mechanism, or train without "
            "privacy: gep-train mechanism=none.",
            setting="mechanism",
        )
    config.output_dir = "."  # Hydra knows it inside a job only, and nothing is written here
    _check_trainer(config.trainer)
    return config


def _check_trainer(trainer: DictConfig) -> None:
    """Raises ConfigurationError for a name that the trainer does not take, or a value that cannot be planned.

    The trainer is imported only for a name that is in none of our own files: Lightning takes seconds.
    """
    ours = {str(key) for path in (config_directory() / "trainer").glob("*.yaml") for key in OmegaConf.load(path)}
    others = {str(name) for name in trainer} - ours - READ
    if others:
        _check_names("trainer", others, inspect.signature(get_object(trainer._target_)).parameters, "Trainer")
    for name, why in REFUSED.items():
        if trainer.get(name) and not (name == "accumulate_grad_batches" and trainer[name] == 1):
            raise ConfigurationError(f"trainer.{name}={trainer[name]} {why}")


def _check_names(group: str, names: Iterable[str], known: Iterable[str], owner: str) -> None:
    for name in sorted(set(names).difference(known)):
        close = difflib.get_close_matches(name, known, n=1)
        fix = f"Did you mean {group}.{close[0]}?" if close else "Remove or correct it."
        raise ConfigurationError(f"{group}.{name} is not an argument of {owner}. {fix}")


def _train_loader(config: DictConfig) -> Any:
    """The train loader, checked as the strategy checks it."""
    from lightning_gep.strategy.refusals import check_loader

    data = instantiate(config.data)
    data.prepare_data()
    data.setup("fit")
    return check_loader(data.train_dataloader())


def _num_parameters(config: DictConfig, groups: Any) -> int:
    """Trainable parameters, counted as the strategy counts them."""
    from lightning_gep.algorithm.groups import ParameterGroups

    model = instantiate(config.model)
    model.configure_model()
    return ParameterGroups.from_module(model, groups).num_parameters


def _build(group: str, build: Callable[[], Any]) -> Any:
    """Any error of a user's own data module or model becomes a ConfigurationError that names the group."""
    try:
        return build()
    except Exception as error:
        cause = cause_of(error)
        if isinstance(cause, ConfigurationError):
            raise cause from error
        option = {"data": "--records", "model": "--parameters"}.get(group)
        without = f" To plan without it, give {option}." if option else ""
        raise ConfigurationError(f"{group} could not be built ({type(error).__name__}: {error}).{without}") from error


def _devices(trainer: Mapping[str, Any]) -> int:
    """Number of processes that share a batch. "auto" depends on the machine, and the noise would depend on it too."""
    devices, nodes = trainer.get("devices", "auto"), trainer.get("num_nodes", 1)
    devices = len(devices) if isinstance(devices, list) else devices
    positive_integer("devices", devices, "The expected batch size depends on it, so it cannot be 'auto'. Use e.g. 1.")
    return devices * positive_integer("num_nodes", nodes, "Use 1.")


def _words(labels: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in labels.items())
