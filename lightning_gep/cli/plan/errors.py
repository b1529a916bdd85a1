"""What goes wrong in a configuration, in one line that names the key."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from lightning_gep.cli.plan.costs import STRATEGY_DEFAULTS
from lightning_gep.errors import ConfigurationError

GROUPS = {
    "privacy": ("epsilon", "delta", "noise_multiplier", "accountant", "generator", "log_nonprivate"),
    "trainer": ("max_epochs", "max_steps", "limit_train_batches", "devices"),
    "data": ("batch_size", "aux_batch_size", "num_workers"),
}
KEYS = {
    **{name: f"mechanism.{name}" for name in STRATEGY_DEFAULTS if name not in ("mechanism", "seed")},
    **{name: f"{group}.{name}" for group, names in GROUPS.items() for name in names},
    "min_steps": "--min-steps",
    "records": "--records",
    "parameters": "--parameters",
}
"""How a setting that the core speaks of is called on the command line."""


@contextmanager
def in_keys(where: str = "") -> Iterator[None]:
    """Inside, whatever is wrong with the configuration is a ConfigurationError of one line, with keys that can be set.

    `where` tells which of several combinations it was.
    """
    try:
        yield
    except (ConfigurationError, HydraException, OmegaConfBaseException) as error:
        raise ConfigurationError(_line(str(error), where)) from error


def with_keys(message: str) -> str:
    """The message with `privacy.delta=` where the core says `delta=`."""
    if message.startswith("The expected batch size"):
        return f"data.batch_size: {message}"
    return re.sub(r"(?<![\w.'-])(\w+)(?==| must)", lambda match: KEYS.get(match[1], match[1]), message)


def _line(message: str, where: str) -> str:
    """One line, without the folders that Hydra searched and links to its manual."""
    message = message.split("Config search path:")[0].split("See https://")[0]
    line = " ".join(with_keys(message).split())
    return f"{line} (In {where}.)" if where and where not in line else line
