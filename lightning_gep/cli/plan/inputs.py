"""What gep-plan plans: the runs that the overrides describe, composed as gep-train does, and their public sizes.

Data and model are built for N and p, unless these are given; nothing is trained.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lightning_gep.arguments import positive_integer
from lightning_gep.cli.configs import check_keys, combinations, config_directory
from lightning_gep.cli.failures import cause_of, one_line_errors
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.reporting.records import NO_PRIVACY
from lightning_gep.strategy.settings import DEFAULTS, PrivacySettings, settings_from


def composed_runs(overrides: Sequence[str]) -> list[tuple[DictConfig, dict[str, str]]]:
    """The configuration of every combination of the values given, and the values that tell it from the others."""
    with one_line_errors(), initialize_config_dir(str(config_directory()), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = parser.parse_overrides(list(overrides))
        several = {override.get_key_element() for override in parsed if override.is_sweep_override()}
        found = []
        for combination in combinations(parsed):
            parts = (part.partition("=") for part in combination)
            labels = {key.lstrip("+"): value for key, _, value in parts if key in several}
            with one_line_errors(words(labels)):
                found.append((compose_run(combination), labels))
        return found


def compose_run(overrides: list[str], config_name: str = "train") -> DictConfig:
    """The configuration as gep-train composes it; refused without a mechanism."""
    config = compose(config_name, overrides)
    check_keys(config)
    if config.mechanism.mechanism == NO_PRIVACY:
        raise ConfigurationError(
            "mechanism=none adds no noise: there is nothing to plan, and a run picked among such runs has no privacy "
            "either. Choose another mechanism, or train it by itself: gep-train mechanism=none.",
            setting="mechanism",
        )
    config.output_dir = "."  # Hydra knows it inside a job only, and nothing is written here
    return config


def privacy_settings(config: DictConfig) -> PrivacySettings:
    """The settings of the strategy, checked."""
    return settings_from({**DEFAULTS, **strategy_arguments(config)})[0]


def strategy_arguments(config: DictConfig) -> dict[str, Any]:
    """The arguments of GEPStrategy; `privacy` overrides `mechanism`, as in training."""
    groups: Any = [OmegaConf.to_container(config[group], resolve=True) for group in ("mechanism", "privacy")]
    given = {name: value for group in groups for name, value in group.items() if not name.startswith("_")}
    for name in sorted(given.keys() - DEFAULTS.keys()):
        raise ConfigurationError(f"{name} is not an argument of GEPStrategy. Remove or correct it.", setting=name)
    return given


class Sizes:
    """The sizes of runs; data and models that several combinations share are built once."""

    def __init__(self, records: int | None = None, parameters: int | None = None) -> None:
        self.records, self.parameters = records, parameters
        self._built: dict[str, Any] = {}

    def of(self, config: DictConfig) -> RunSize:
        """The sizes of the run that a configuration describes."""
        trainer: Any = OmegaConf.to_container(config.trainer, resolve=True)
        limit = trainer.get("limit_train_batches")
        num_records, batch_size, drop_last = self._data(config)
        built = self.parameters is None
        groups = self._once("model", "--parameters", _group_sizes, config) if built else ()
        return RunSize(
            num_records=num_records,
            num_parameters=self.parameters or sum(groups),
            batch_size=batch_size,
            drop_last=drop_last,
            max_epochs=trainer.get("max_epochs"),
            max_steps=trainer.get("max_steps", -1),
            limit_train_batches=1.0 if limit is None else limit,
            devices=_devices(trainer),
            group_sizes=groups,
        )

    def _data(self, config: DictConfig) -> tuple[int, int, bool]:
        """Number of records, batch size and whether the last, smaller batch of an epoch is dropped."""
        asked = OmegaConf.select(config, "data.batch_size")
        if self.records is None:
            # Data is slow to read, so it is read once for all batch sizes that its module passes on.
            records, built_with, batch_size, drop_last = self._once("data", "--records", _train_data, config)
            return records, asked if batch_size == built_with else batch_size, drop_last
        if asked is None:
            raise ConfigurationError("data.batch_size is not set. It is the mean number of records per step.")
        return self.records, asked, False

    def _once(self, group: str, option: str, build: Callable[[DictConfig], Any], config: DictConfig) -> Any:
        """What `build` finds. Any error of a user's own class becomes a ConfigurationError that names the group."""
        settings: Any = OmegaConf.to_container(config[group], resolve=True)
        key = repr((group, {**settings, "batch_size": None}, group == "model" and config.mechanism.get("groups")))
        if key not in self._built:
            try:
                self._built[key] = build(config)
            except Exception as error:
                cause = cause_of(error)
                if isinstance(cause, ConfigurationError):
                    raise cause from error
                raise ConfigurationError(
                    f"{group} could not be built ({type(error).__name__}: {error}). To plan without it, give {option}."
                ) from error
        return self._built[key]


def _train_data(config: DictConfig) -> tuple[int, int | None, int, bool]:
    """Records, the batch size in the configuration, and what the loader makes of it, checked as the strategy does."""
    from lightning_gep.strategy.refusals import check_loader

    data = instantiate(config.data)
    data.prepare_data()
    data.setup("fit")
    loader: Any = check_loader(data.train_dataloader())
    return len(loader.dataset), OmegaConf.select(config, "data.batch_size"), loader.batch_size, loader.drop_last


def _group_sizes(config: DictConfig) -> tuple[int, ...]:
    """Trainable parameters of each group, as the strategy groups them."""
    from lightning_gep.algorithm.groups import ParameterGroups

    model = instantiate(config.model)
    model.configure_model()
    return ParameterGroups.from_module(model, config.mechanism.get("groups", "balanced")).sizes


def _devices(trainer: Mapping[str, Any]) -> int:
    """Number of processes that share a batch. "auto" depends on the machine, and the noise would depend on it too."""
    devices, nodes = trainer.get("devices", "auto"), trainer.get("num_nodes", 1)
    devices = len(devices) if isinstance(devices, list) else devices
    positive_integer("devices", devices, "The expected batch size depends on it, so it cannot be 'auto'. Use e.g. 1.")
    return devices * positive_integer("num_nodes", nodes, "Use 1.")


def words(labels: Mapping[str, str]) -> str:
    """The values that tell a combination from the others, as overrides."""
    return " ".join(f"{key}={value}" for key, value in labels.items())
