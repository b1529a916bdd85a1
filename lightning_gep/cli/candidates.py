"""What a run would cost at each of several settings, known before any of them is trained."""

from omegaconf import DictConfig

from lightning_gep.cli.plan.inputs import Sizes, strategy_settings
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.accounting import power_of_ten_below
from lightning_gep.privacy.calibration import noise_multiplier_for
from lightning_gep.reporting.records import NO_PRIVACY

Event = dict[str, float | bool]
"""`sample_rate`, `noise_multiplier`, `steps` and `delta` of a run, and whether its draws are secret (`private`)."""


def planned_events(configs: list[DictConfig]) -> list[Event]:
    """The steps and the noise of each run. Data and model are built for their sizes; nothing is trained."""
    sizes = Sizes()
    return [_planned_event(config, sizes) for config in configs]


def _planned_event(config: DictConfig, sizes: Sizes) -> Event:
    if config.mechanism.mechanism == NO_PRIVACY:
        raise ConfigurationError(
            "mechanism=none has no privacy, so what is picked from such runs has none either. Leave it out, or "
            "leave out hydra/sweeper=repeat_and_select to train a grid.",
            setting="mechanism",
        )
    settings = strategy_settings(config)
    size = sizes.of(config)
    rate = size.expected_batch_size / size.num_records
    noise = settings["noise_multiplier"]
    delta = settings["delta"] or power_of_ten_below(1 / size.num_records)
    if noise is None:
        noise, _ = noise_multiplier_for(settings["epsilon"], delta, rate, size.steps, settings["accountant"])
    private = settings["generator"] != "seeded" and noise > 0
    return {"sample_rate": rate, "noise_multiplier": noise, "steps": size.steps, "delta": delta, "private": private}
