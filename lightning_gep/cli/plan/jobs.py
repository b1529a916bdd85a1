"""From the words on a command line to runs that could be made: the overrides of gep-train, composed as it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from lightning_gep.cli.configs import check_keys, config_directory
from lightning_gep.cli.plan.costs import check_names
from lightning_gep.cli.plan.errors import in_keys
from lightning_gep.cli.plan.sizes import Known, Sizes
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.reporting.records import NO_PRIVACY


@dataclass(frozen=True)
class Job:
    """One combination of overrides: the arguments of its strategy, its sizes, and what tells it from the others."""

    settings: Mapping[str, Any]
    size: RunSize
    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        """The values that this combination has of those with several: `mechanism=gp data.batch_size=256`."""
        return " ".join(f"{key}={value}" for key, value in self.labels.items())


def make_jobs(overrides: Sequence[str], known: Known) -> tuple[list[Job], dict[str, list[str]]]:
    """A job for every combination of the values given, in Hydra's own grammar, and all values given for each key.

    Data and model are built to learn N and p, unless these are known; nothing is trained. Raises ConfigurationError
    with the key in it.
    """
    sizes = Sizes(known)
    with in_keys(), initialize_config_dir(str(config_directory()), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = [_parse(parser, override) for override in overrides]
        several = {override.get_key_element() for override in parsed if override.is_sweep_override()}
        (combinations,) = BasicSweeper.split_arguments(parsed, None)
        jobs = [_make_job(combination, several, sizes) for combination in combinations]
    given: dict[str, list[str]] = {}
    for key, value in (_halves(part) for combination in combinations for part in combination):
        given.setdefault(key.lstrip("+"), []).append(value)
    return jobs, {key: list(dict.fromkeys(values)) for key, values in given.items()}


def _make_job(combination: list[str], several: set[str], sizes: Sizes) -> Job:
    labels = {key: value for key, value in map(_halves, combination) if key in several}
    with in_keys(" ".join(f"{key}={value}" for key, value in labels.items())):
        config = _compose(combination)
        if config.mechanism.mechanism == NO_PRIVACY:
            raise ConfigurationError(
                "mechanism=none adds no noise, so there is nothing to plan. Leave it out, or train without privacy: "
                "gep-train mechanism=none."
            )
        config.output_dir = "."  # otherwise asked of Hydra, which knows it inside a job only; nothing is written
        settings = _strategy_settings(config)
        return Job(settings, sizes.of(config, settings), {key.lstrip("+"): value for key, value in labels.items()})


def _parse(parser: OverridesParser, override: str) -> Override:
    try:
        return parser.parse_override(override)
    except HydraException as error:
        raise ConfigurationError(f"{override!r} is not an override ({error}). Write key=value.") from error


def _compose(combination: list[str]) -> DictConfig:
    """The configuration as gep-train composes it."""
    try:
        config = compose("train", combination)
    except HydraException:
        raise
    except ValueError as error:  # Hydra's own, without the override that it speaks of
        raise ConfigurationError(f"{' '.join(combination)}: {error}") from error
    check_keys(config)
    return config


def _strategy_settings(config: DictConfig) -> dict[str, Any]:
    """The arguments that a job would pass to GEPStrategy; `privacy` has the last word, as there."""
    settings: dict[str, Any] = {}
    for group in ("mechanism", "privacy"):
        values: Any = OmegaConf.to_container(config[group], resolve=True)
        named = {key: value for key, value in values.items() if not key.startswith("_")}
        check_names(named, f"{group}.")
        settings.update(named)
    return settings


def _halves(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key, value
