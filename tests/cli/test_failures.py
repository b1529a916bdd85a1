import pytest
from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from lightning_gep.cli.failures import in_a_line, is_a_setting
from lightning_gep.errors import ConfigurationError, LedgerError

CONFIG = OmegaConf.create(
    {
        "optimizer": {"lr": 2.0},
        "model": {"optimizer": "${optimizer}"},
        "data": {"batch_size": 0, "seed": 0},
        "mechanism": {"mechanism": "gep", "k": 9999},
        "privacy": {"delta": 0.5},
        "seed": 0,
    }
)


def wrapped(cause):
    try:
        raise InstantiationException("Error in call to target\nfull_key: data") from cause
    except InstantiationException as error:
        return error


@pytest.mark.parametrize(
    ("setting", "keys"),
    [("batch_size", "data.batch_size"), ("k", "mechanism.k"), ("lr", "optimizer.lr"), ("seed", "data.seed, seed")],
)
def test_an_error_names_the_keys_it_is_about(setting, keys):
    error = ConfigurationError("It must be above 0.", setting=setting)
    assert in_a_line(error, CONFIG) == in_a_line(wrapped(error), CONFIG) == f"It must be above 0. (config key: {keys})"


@pytest.mark.parametrize(
    ("error", "line", "setting"),
    [
        (ConfigurationError("a\nb"), "a b", True),
        (LedgerError("a"), "a", True),
        (wrapped(ConfigurationError("a")), "a", True),
        (wrapped(ValueError("a")), "ValueError: a", False),
        (RuntimeError("out of\nmemory"), "RuntimeError: out of memory", False),
        (KeyboardInterrupt(), "KeyboardInterrupt", False),
    ],
)
def test_settings_are_told_from_crashes_and_an_unexpected_error_says_of_which_kind_it_is(error, line, setting):
    assert in_a_line(error, CONFIG) == line
    assert is_a_setting(error) == setting
