"""What went wrong, in a line for people."""

from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from lightning_gep.cli.configs import with_config_key
from lightning_gep.errors import ConfigurationError, LedgerError


def cause_of(error: BaseException) -> BaseException:
    """The error itself, or the one that Hydra met while it built an object."""
    return error.__cause__ if isinstance(error, InstantiationException) and error.__cause__ is not None else error


def is_a_setting(error: BaseException) -> bool:
    """Whether it can be mended by other settings, and was found before anything was trained."""
    return isinstance(cause_of(error), ConfigurationError | LedgerError)


def in_a_line(error: BaseException, config: DictConfig) -> str:
    """The message with the key of the configuration it is about; for an error we did not write, also its kind."""
    cause = cause_of(error)
    message = " ".join(str(cause).split())
    if not is_a_setting(error):
        return f"{type(cause).__name__}: {message}" if message else type(cause).__name__
    return with_config_key(message, OmegaConf.to_container(config, resolve=False))
