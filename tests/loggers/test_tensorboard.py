import sys

import pytest
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from lightning_gep.errors import ConfigurationError
from lightning_gep.loggers.tensorboard import PrivateTensorBoardLogger
from lightning_gep.strategy.callbacks import PerformanceMonitor, PrivacyMonitor
from tests.toys import Classifier, loader, strategy, trainer

CONFIG = {"seed": 0, "mechanism": {"mechanism": "gep", "k": 6, "split": [1.0, 2.0]}, "sweep": None}


def written(directory):
    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return events


def train(directory, callbacks=(), **settings):
    logger = PrivateTensorBoardLogger(str(directory), name="tensorboard", version="")
    logger.log_hyperparams(CONFIG)
    fit = trainer(
        directory,
        strategy(**settings),
        logger=logger,
        callbacks=[PrivacyMonitor(), PerformanceMonitor(), *callbacks],
        log_every_n_steps=1,
    )
    fit.fit(Classifier(), loader(), loader(shuffle=False))
    return written(directory)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Of a finished run."""
    directory = tmp_path_factory.mktemp("run")
    train(directory, epsilon=5.0)
    return directory


def test_it_writes_what_may_be_known_and_nothing_else(directory):
    names = set(written(directory).Tags()["scalars"])
    privacy = {"epsilon", "remaining_epsilon", "delta", "noise_multiplier", "steps", "private"}
    performance = {"steps_per_second", "records_per_second", "peak_memory_mb"}
    assert names == {
        "epoch",
        "val/accuracy",
        *(f"privacy/{name}" for name in privacy),
        *(f"performance/{name}" for name in performance),
    }
    everything = b"".join(path.read_bytes() for path in (directory / "tensorboard").iterdir())
    assert b"val/accuracy" in everything
    assert b"train/loss" not in everything


def test_the_configuration_is_a_file_and_a_table_beside_the_results(directory):
    events = written(directory)
    assert OmegaConf.load(directory / "tensorboard" / "hparams.yaml") == CONFIG
    contents = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(contents).session_start_info
    table = {name: value.WhichOneof("kind") for name, value in start.hparams.items()}
    assert table == {
        "seed": "number_value",
        "mechanism/mechanism": "string_value",
        "mechanism/k": "number_value",
        "mechanism/split": "string_value",
        "sweep": "string_value",
    }
    contents = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    results = plugin_data_pb2.HParamsPluginData.FromString(contents).experiment.metric_infos
    assert [result.name.tag for result in results] == ["test/accuracy", "val/accuracy", "privacy/epsilon"]
    assert "test/accuracy" not in events.Tags()["scalars"], "no value is made up"


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigurationError, match=r"pip install 'lightning-gep\[tensorboard\]'"):
        PrivateTensorBoardLogger(str(tmp_path))
