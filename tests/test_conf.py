import re

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lightning_gep.cli.configs import KEYS, composed, config_directory
from lightning_gep.cli.job import make_trainer
from lightning_gep.errors import ConfigurationError

CONF = config_directory()
FILES = sorted(path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*/*.yaml"))
EXPERIMENTS = [name for name in FILES if re.match(r"paper/|better/|experiment/", name)]
"""The experiments and the parts they are made of: see test_conf_experiments."""
OPTIONS = [name.rsplit("/", 1) for name in FILES if name not in EXPERIMENTS]


@pytest.fixture
def compose_train(tmp_path):
    return lambda *overrides: composed(overrides, tmp_path)


def with_small_files(group, option, directory):
    """What an option needs that the default job does not have."""
    few = [f"data.directory={directory}", "data.batch_size=4", "data.validation_size=5", "aux.count=4"]
    if group == "data" and option != "digits":
        smaller = ["data.network.image_size=32"] if option == "cifar10_features" else []
        return ["aux=test_samples", *few, *smaller]
    if group == "aux" and option != "photographs":
        return ["data=mnist", *few]
    return []


def build(config):
    """Everything the app builds from a config, up to the optimizer."""
    data, model, trainer = instantiate(config.data), instantiate(config.model), make_trainer(config)
    data.setup()
    return data, model, trainer, model.configure_optimizers()


def test_the_configs_were_found():
    assert len(OPTIONS) >= 35
    assert len(EXPERIMENTS) >= 72
    assert {name.split("/")[0] for name in FILES} == {path.name for path in CONF.iterdir() if path.is_dir()}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_config_composes_and_builds(group, option, compose_train, small_data):
    config = compose_train(f"{group}={option}", *with_small_files(group, option, small_data))
    OmegaConf.resolve(config)
    data, model, trainer, optimizers = build(config)
    assert len(next(iter(data.train_dataloader()))) == len(next(iter(data.aux_dataloader())))
    assert optimizers["optimizer"].param_groups[0]["params"] == list(model.parameters())
    assert trainer.max_epochs == config.trainer.max_epochs


def test_the_default_job_is_the_documented_one(compose_train):
    config = compose_train()
    assert (config.privacy.epsilon, config.privacy.delta) == (8.0, 1e-4)
    assert (config.data.batch_size, config.trainer.max_epochs) == (256, 30)
    data, *_ = build(config)
    assert config.privacy.delta < 1 / len(data.train)


def test_a_misspelt_key_in_a_file_is_an_error_too(compose_train):
    assert set(compose_train()) == KEYS
    with pytest.raises(ConfigurationError, match=r"unknown key 'privcy'.*privacy"):
        compose_train("+privcy.epsilon=2")
    with pytest.raises(InstantiationException, match="unexpected keyword argument 'epsilonn'"):
        make_trainer(compose_train("+privacy.epsilonn=2"))
