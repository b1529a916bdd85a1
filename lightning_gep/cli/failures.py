"""Errors as one line for people, with the configuration key that the error is about."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException, InstantiationException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightning_gep.cli.configs import flat
from lightning_gep.errors import ConfigurationError, LedgerError


def cause_of(error: BaseException) -> BaseException:
    """The error itself, or the one that Hydra wrapped while it built an object."""
    return error.__cause__ if isinstance(error, InstantiationException) and error.__cause__ is not None else error


def is_a_setting(error: BaseException) -> bool:
    """Whether other settings would fix it. Such errors are raised before anything is trained."""
    return isinstance(cause_of(error), ConfigurationError | LedgerError)


def in_a_line(error: BaseException, config: DictConfig | None = None) -> str:
    """The message on one line: with its configuration key, or the error's type if it is not one of ours or Hydra's."""
    cause = cause_of(error)
    # Hydra adds the folders it searched and links to its manual.
    message = " ".join(str(cause).split("Config search path:")[0].split("See https://")[0].split())
    if not isinstance(cause, ConfigurationError | LedgerError | HydraException | OmegaConfBaseException):
        return f"{type(cause).__name__}: {message}" if message else type(cause).__name__
    setting = getattr(cause, "setting", None)
    given: Any = {} if setting is None or config is None else OmegaConf.to_container(config)
    # A key that refers to another is left out.
    own = [key for key, value in flat(given).items() if not str(value).startswith("${")]
    keys = [key for key in own if key.rpartition(".")[2] == setting]
    named = all(key in message for key in keys)
    return message if named else f"{message} (config key: {', '.join(keys)})"


@contextmanager
def one_line_errors(where: str = "", config: DictConfig | None = None) -> Iterator[None]:
    """Inside, every error of the configuration becomes a one-line ConfigurationError; `where` names the job."""
    try:
        yield
    except (ValueError, HydraException, OmegaConfBaseException) as error:  # Hydra raises some bare ValueErrors
        line = in_a_line(error, config)
        raise ConfigurationError(f"{line} (In {where}.)" if where and where not in line else line) from error
