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
    ("setting", "key"), [("batch_size", "data.batch_size"), ("k", "mechanism.k"), ("lr", "optimizer.lr")]
)
def test_an_error_names_the_key_it_is_about(setting, key):
    error = ConfigurationError("It must be above 0.", setting=setting)
    assert in_a_line(error, CONFIG) == in_a_line(wrapped(error), CONFIG) == f"It must be above 0. (config key: {key})"


def test_a_name_that_two_groups_have_is_given_with_both():
    error = ConfigurationError("seed must be 0 or more", setting="seed")
    assert in_a_line(error, CONFIG).endswith("(config key: data.seed, seed)")


def test_an_unexpected_error_says_of_which_kind_it_is_in_one_line():
    assert in_a_line(RuntimeError("out of\nmemory"), CONFIG) == "RuntimeError: out of memory"
    assert in_a_line(KeyboardInterrupt(), CONFIG) == "KeyboardInterrupt"


def test_settings_are_told_from_crashes():
    assert is_a_setting(ConfigurationError("a"))
    assert is_a_setting(LedgerError("a"))
    assert is_a_setting(wrapped(ConfigurationError("a")))
    assert not is_a_setting(wrapped(ValueError("a")))
    assert not is_a_setting(ValueError("a"))
