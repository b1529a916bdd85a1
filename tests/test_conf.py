import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, InstantiationException, MissingConfigException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lightning_gep.cli.configs import KEYS, check_keys, config_directory
from lightning_gep.cli.job import make_trainer
from lightning_gep.errors import ConfigurationError

CONF = config_directory()
OPTIONS = sorted(path.relative_to(CONF).with_suffix("").as_posix().rsplit("/", 1) for path in CONF.rglob("*/*.yaml"))


@pytest.fixture
def compose_train(tmp_path):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield lambda *overrides: compose("train", [f"output_dir={tmp_path}", *overrides])


def build(config):
    """Everything the app builds from a config, up to the optimizer."""
    data, model, trainer = instantiate(config.data), instantiate(config.model), make_trainer(config)
    data.setup()
    return data, model, trainer, model.configure_optimizers()


def test_the_configs_were_found():
    assert len(OPTIONS) >= 24
    assert {group.split("/")[0] for group, _ in OPTIONS} == {path.name for path in CONF.iterdir() if path.is_dir()}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_config_composes_and_builds(group, option, compose_train):
    config = compose_train(f"{group}={option}")
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


@pytest.mark.parametrize("override", ["mechanism.k=7", "mechanism.split=[2.0,3.0]", "mechanism.groups=layer"])
def test_a_mechanism_setting_reaches_the_strategy(override, compose_train):
    make_trainer(compose_train(override))


@pytest.mark.parametrize(
    "key",
    [
        "sed",
        "data.batchsize",
        "model.chanels",
        "mechanism.kk",
        "privacy.epsilonn",
        "trainer.max_epoch",
        "optimizer.lrr",
    ],
)
def test_a_misspelt_key_is_an_error_that_names_it(key, compose_train):
    with pytest.raises(ConfigCompositionException, match=rf"Could not override '{key}'"):
        compose_train(f"{key}=1")


def test_a_misspelt_key_in_a_file_is_an_error_too(compose_train):
    check_keys(compose_train())
    assert set(compose_train()) == KEYS
    with pytest.raises(ConfigurationError, match=r"unknown key 'privcy'.*privacy"):
        check_keys(compose_train("+privcy.epsilon=2"))
    with pytest.raises(InstantiationException, match="unexpected keyword argument 'epsilonn'"):
        make_trainer(compose_train("+privacy.epsilonn=2"))


def test_a_setting_the_mechanism_does_not_have_is_an_error(compose_train):
    with pytest.raises(ConfigCompositionException, match=r"mechanism\.k"):
        compose_train("mechanism=gp", "mechanism.k=10")


def test_a_misspelt_option_lists_the_right_ones(compose_train):
    with pytest.raises(MissingConfigException, match=r"mechanism/gepp(.|\n)*bgep(.|\n)*gep(.|\n)*gp"):
        compose_train("mechanism=gepp")
