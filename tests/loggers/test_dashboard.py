import pytest

from lightning_gep.loggers.dashboard import MECHANISMS, NOT_COVERED, dashboard, definition
from lightning_gep.loggers.wandb import PrivateWandbLogger, finish_runs, log_summary
from tests.loggers.test_wandb import Tested, train
from tests.wandb_files import offline, written_runs  # noqa: F401


@pytest.fixture(scope="module")
def sections():
    spec = definition(dashboard("p", "e"))["spec"]["section"]
    return {section["name"]: section["panels"] for section in spec["panelBankConfig"]["sections"]}


def named(panel):
    """The metrics and settings that a chart needs, as `summary:…`, `config:…` or, of rows, `history:…`."""
    config = panel["config"]
    found = {f"history:{name}" for name in config.get("metrics", [])}
    if panel["viewType"] == "Run History Line Plot":
        found.add(f"history:{config['xAxis']}")
    if panel["viewType"] == "Scatter Plot":
        found |= {config["xAxis"], config["yAxis"]}
    return found | {column["accessor"] for column in config.get("columns", [])}


def all_named(sections):
    return {name for panels in sections.values() for panel in panels for name in named(panel)}


def test_what_is_not_private_is_in_a_section_that_says_so(sections):
    assert "NOT covered by ε" in NOT_COVERED
    for title, panels in sections.items():
        for panel in panels:
            if title == NOT_COVERED and panel["viewType"] != "Markdown Panel":
                assert "not private" in panel["config"]["chartTitle"]
                assert all(name.startswith("nonprivate/") for name in panel["config"]["metrics"])
            else:
                assert not any("nonprivate" in name for name in named(panel))
    assert len(sections[NOT_COVERED]) > 3


def test_nothing_is_charted_that_was_not_chosen():
    view = definition(dashboard("p", "e"))
    assert (view["project"], view["entity"], view["displayName"]) == ("p", "e", "Privacy and accuracy")
    settings = view["spec"]["section"]["settings"]
    assert settings["shouldAutoGeneratePanels"] is False, "or values that are not private would get charts anywhere"


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_every_metric_is_one_that_runs_log(tmp_path, sections):
    config = {"mechanism": {"mechanism": "gep", "k": 6}, "privacy": {"epsilon": 5.0}}
    for mechanism in MECHANISMS:
        directory = tmp_path / mechanism
        logger = PrivateWandbLogger(directory)
        logger.log_hyperparams(config)
        fit = train(
            directory, logger, Tested(), settings={"log_nonprivate": True, "mechanism": mechanism}, max_epochs=1
        )
        privacy = fit.strategy.privacy.report()
        log_summary([logger], mechanism=mechanism, privacy=privacy, test_accuracy=0.5)
        finish_runs([logger])
    logged = {"config:mechanism.value.mechanism", "config:mechanism.value.k"}
    for run in written_runs(tmp_path):
        logged |= {f"history:{name}" for name in run.keys} | {f"summary:{name}" for name in run.summary}
        assert run.config["mechanism"].keys() == {"mechanism", "k"}
    needed = all_named(sections)
    assert len(needed) > 20
    assert needed - logged == set()
