"""Every experiment, of the paper and our own: its settings, and two of its steps on small files in the real formats."""

import math
import re
from functools import cache
from itertools import product

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lightning_gep.cli import configs
from lightning_gep.cli.job import make_trainer, train
from recipes.published import RESULTS
from tests import small_runs

CONF = configs.config_directory()
EXPERIMENTS = sorted(
    path.relative_to(CONF / "experiment").with_suffix("").as_posix() for path in CONF.glob("experiment/**/*.yaml")
)
OWN = ("cifar10_cnn/", "digits_epsilon2", "mnist_best", "mnist_epsilon2/", "no_privacy/")
OF_THE_PAPER = [name for name in EXPERIMENTS if not name.startswith(OWN)]
EPOCHS = {"mnist": {2: 50, 5: 100, 8: 200}, "cifar10": {2: 50, 5: 100, 8: 200}, "svhn": {2: 5, 5: 10, 8: 20}}
TITLES = {"mnist": "MNIST", "svhn": "SVHN", "cifar10": "CIFAR-10"}
SMALL = {**small_runs.SMALL, "threads": 1}


@cache
def composed_once(name):
    return configs.composed([f"experiment={name}", "~callbacks.progress_bar"])


def composed(name):
    """Composing takes longer than looking at the outcome, so the tests share it."""
    return composed_once(name).copy()


def small(config, directory):
    """The experiment on few records, public images, basis vectors and steps; the noise is set, not calibrated."""
    for key, value in {**SMALL, "data.directory": str(directory)}.items():
        if OmegaConf.select(config, key, default="not there") != "not there":
            OmegaConf.update(config, key, value)
    config.logger = {}
    return config


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_builds_as_it_stands(name):
    config = composed(name)
    instantiate(config.data)
    instantiate(config.model).configure_optimizers()
    make_trainer(config)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if not re.search(r"_eps(?!2)\d|_m(?!2000)\d", name)])
def test_every_kind_of_experiment_trains_for_two_steps(name, small_data, tmp_path):
    """Those that differ in ε or in the number of anchors alone are the same when they are small."""
    config = small(composed(name), small_data)
    config.output_dir = str(tmp_path)
    record = train(config)
    assert (record.status, record.step, record.planned_steps) == ("finished", 2, 2)
    if name.startswith("no_privacy/"):
        assert record.privacy["epsilon"] == math.inf
    else:
        assert record.privacy["noise_multiplier"] == pytest.approx(1.0)
    assert 0 <= record.metrics["test/accuracy"] <= 1


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("table1/")])
def test_table_1_has_the_settings_of_the_paper(name):
    data, mechanism, epsilon = re.fullmatch(r"table1/(\w+)_(\w+)_eps(\d)", name).groups()
    config, epsilon = composed(name), int(epsilon)
    assert (config.data.name, config.mechanism.mechanism, config.privacy.epsilon) == (data, mechanism, epsilon)
    assert config.trainer.max_epochs == EPOCHS[data][epsilon]
    assert config.privacy.delta == RESULTS[TITLES[data]].delta
    if mechanism != "gp":
        assert config.mechanism.k == (500 if data == "mnist" else 1000)
    published = RESULTS[TITLES[data]].accuracies[mechanism][[2, 5, 8].index(epsilon)]
    words = (CONF / "experiment" / f"{name}.yaml").read_text()
    assert f"on {TITLES[data]} at ε = {epsilon}. Published: {published} %" in words


@pytest.mark.parametrize("name", [name for name in OF_THE_PAPER if not name.startswith("linear_probe/")])
def test_training_from_scratch_is_as_in_the_paper(name):
    config = composed(name)
    assert (config.data.batch_size, config.data.validation_size) == (1000, 0)
    assert config.data.get("extra", False) == (config.data.name == "svhn")
    assert config.optimizer._target_ == "torch.optim.SGD"
    assert (config.optimizer.lr, config.optimizer.momentum, config.optimizer.weight_decay) == (0.1, 0.9, 1e-4)
    assert (config.scheduler.at, config.scheduler.factor) == (0.5, 0.1)
    mechanism = config.mechanism
    if mechanism.mechanism == "gp":
        assert mechanism.clip_norm == 10
        return
    assert mechanism.clip_embedding == 10
    assert mechanism.num_anchors == config.aux.count
    assert (mechanism.power_iterations, mechanism.refresh_every) == (1, 1)
    assert mechanism.subspace == ("random" if name.startswith("random_basis/") else "power")
    assert mechanism.num_anchors == (int(name.split("_m")[1]) if name.startswith("anchors/") else 2000)
    if mechanism.mechanism == "gep":
        assert (mechanism.clip_residual, mechanism.split, mechanism.clipping) == (2, "equal", "separate")


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("linear_probe/") and "eps" in name])
def test_the_linear_probe_is_as_in_the_appendix(name):
    mechanism, epsilon = re.fullmatch(r"linear_probe/(\w+)_eps(\w+)", name).groups()
    config = composed(name)
    assert (config.mechanism.mechanism, config.privacy.epsilon) == (mechanism, float(epsilon.replace("_", ".")))
    assert (config.privacy.delta, config.aux.count, config.data.validation_size) == (1e-5, 500, 0)
    assert config.optimizer._target_ == "torch.optim.Adam"
    assert config.model.network.num_features == config.data.num_features
    if mechanism != "gp":
        assert (config.mechanism.k, config.mechanism.num_anchors) == (200, 500)
    if mechanism == "gep":
        assert config.mechanism.clip_residual == pytest.approx(config.mechanism.clip_embedding / 5)


def test_every_part_is_part_of_an_experiment():
    parts = {f"{path.parent.name}/{path.stem}" for folder in ("paper", "better") for path in (CONF / folder).iterdir()}
    words = "".join(path.read_text() for path in CONF.glob("experiment/**/*.yaml"))
    assert parts == set(re.findall(r"- /((?:paper|better)/\w+)", words))


def differing(name, other="mnist_best"):
    """The settings in which two experiments differ."""
    one, two = (configs.flat(OmegaConf.to_container(composed(each), resolve=True)) for each in (name, other))
    return {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("cold_start", {"mechanism.subspace", "mechanism.num_anchors", "mechanism.power_iterations"}),
        ("rdp", {"privacy.accountant"}),
        ("equal_split", {"mechanism.split"}),
        ("joint_clipping", {"mechanism.clipping"}),
        ("batch_1000", {"data.batch_size", "optimizer.lr", "model.optimizer.lr"}),
        (
            "paper_network",
            {f"model.network.{key}" for key in ("activation", "normalise", "filters", "group_norm")}
            | {"optimizer.lr", "model.optimizer.lr"},
        ),
    ],
)
def test_an_ablation_changes_one_part_of_the_best_setting(name, parts):
    assert differing(f"mnist_epsilon2/{name}") == parts


def test_the_documentation_lists_them_all():
    """`a_{b,c}` stands for a_b and a_c."""
    page = (CONF.parent / "docs" / "data.md").read_text()
    listed = set()
    for pattern in re.findall(r"^\| `(\w+/[^`]+)`", page, re.MULTILINE):
        choices = [part.split(",") for part in re.split(r"[{}]", pattern)]
        listed |= {"".join(parts) for parts in product(*choices)}
    assert listed == {name for name in EXPERIMENTS if "/" in name}
    assert set(re.findall(r"experiment=(\w+/\w+)", page)) <= listed


def test_no_file_names_a_machine():
    for path in CONF.rglob("*.yaml"):
        assert not re.search(r"https?://|: */(?!\w+/\w+: )[a-z]+/", path.read_text()), path
