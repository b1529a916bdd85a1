import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import pytest
from hydra.utils import instantiate
from rich.console import Console

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.cli.configs import composed, config_directory
from lightning_gep.cli.plan.command import main
from lightning_gep.cli.plan.costs import plan_noise
from lightning_gep.cli.plan.output import NOISE, plan_table
from lightning_gep.cli.plan.output import rows as figure_rows
from lightning_gep.cli.plan.page import write_page
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.privacy.run_size import RunSize
from lightning_gep.strategy.fit import planned_steps
from lightning_gep.strategy.settings import PrivacySettings
from tests.browser import browser, check_on_a_phone  # noqa: F401  # a fixture

OWN = ("--records", "1257", "--parameters", "6186")
RDP = "privacy.accountant=rdp"
GP = PrivacySettings(mechanism="gp", epsilon=2.0, accountant="rdp")


def rows(tmp_path, *arguments):
    main([*arguments, "--json", str(tmp_path / "plan.json")])
    return json.loads((tmp_path / "plan.json").read_text("utf-8"))["rows"]


def strategys_plan(*overrides):
    """The plan that training with these overrides would have: built as the strategy builds it, without training."""
    config = composed(overrides)
    strategy = instantiate(config.mechanism, **config.privacy)
    trainer = instantiate(config.trainer)(logger=False, callbacks=[], enable_checkpointing=False, accelerator="cpu")
    data, model = instantiate(config.data), instantiate(config.model)
    data.setup("fit")
    loader = data.train_dataloader()
    return strategy.settings.plan(
        num_records=len(loader.dataset),
        batch_size=loader.batch_size,
        steps=planned_steps(trainer, len(loader)),
        num_parameters=ParameterGroups.from_module(model, strategy.cost.groups).num_parameters,
    )


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("mechanism=bgep", RDP, "data.batch_size=512", "model.network.channels=8", "mechanism.k=50"),
        ("experiment=digits_epsilon2", RDP, "mechanism.split=equal", "trainer.max_steps=41"),
        (RDP, "mechanism.clipping=joint", "mechanism.clip_residual=0.1", "privacy.delta=null"),
        (RDP, "mechanism.split=[2,1]", "privacy.epsilon=null", "privacy.noise_multiplier=1.3"),
    ],
)
def test_it_plans_what_gep_train_would_do(overrides, tmp_path):
    plan = strategys_plan(*overrides)
    (row,) = rows(tmp_path, *overrides)
    embedding, residual = plan.release.embedding, plan.release.residual
    assert row["noise_multiplier"] == plan.event.noise_multiplier
    assert row["sigma_embedding"] == (None if embedding is None else embedding.sigma)
    assert row["sigma_residual"] == (None if residual is None else residual.sigma)
    assert row["steps"] == plan.planned_steps
    for name in ("sample_rate", "delta", "accountant", "target_epsilon"):
        assert row[name] == getattr(plan, name)


def test_commas_range_and_choice_give_every_combination_as_in_hydra(tmp_path):
    arguments = (RDP, "data.batch_size=128,256", "trainer.max_epochs=range(5,15,5)", "mechanism=choice(gep,gp)")
    found = rows(tmp_path, "--multirun", *arguments, *OWN)
    combinations = [(row["batch_size"], row["epochs"], row["mechanism"]) for row in found]
    assert combinations == [(b, e, m) for b in (128, 256) for e in (5, 10) for m in ("gep", "gp")]
    # A list in brackets is one value, and a key may be deleted.
    assert len(rows(tmp_path, RDP, "mechanism.split=[1,2]", "~callbacks.progress_bar", *OWN)) == 1


def test_data_that_is_read_once_serves_every_batch_size(tmp_path):
    found = rows(tmp_path, RDP, "data.batch_size=64,128")
    assert [(row["batch_size"], row["records"], row["steps"]) for row in found] == [(64, 1257, 600), (128, 1257, 300)]


def test_several_devices_share_a_batch(tmp_path):
    (row,) = rows(tmp_path, RDP, *OWN, "trainer.devices=2", "data.batch_size=100")
    assert (row["batch_size"], row["steps"]) == (200, 30 * 7)
    (row,) = rows(tmp_path, RDP, *OWN, "trainer.devices=[0,1]", "+trainer.num_nodes=2", "data.batch_size=100")
    assert row["batch_size"] == 400


def test_epsilon_of_a_given_noise_and_on_the_way(tmp_path, capsys):
    arguments = (*OWN, "privacy.epsilon=null", "privacy.noise_multiplier=1.3", "trainer.max_steps=12")
    (row,) = rows(tmp_path, *arguments)
    quarters = [point["epsilon"] for point in row["epsilon_at_quarters"]]
    assert [point["steps"] for point in row["epsilon_at_quarters"]] == [3, 6, 9]
    assert 0 < quarters[0] < quarters[1] < quarters[2] < row["epsilon"] < row["epsilon_by_rdp"]
    shown = capsys.readouterr().out
    for value in (*quarters, row["epsilon"], row["epsilon_by_rdp"]):
        assert rounded_up(value) in shown
    for words in ("ε by RDP", "ε after a quarter of the run", "ε after half", "ε after three quarters"):
        assert words in shown


def test_a_run_without_privacy_says_so(tmp_path, capsys):
    (row,) = rows(tmp_path, *OWN, "privacy.epsilon=null", "privacy.noise_multiplier=0", RDP)
    assert (row["epsilon"], row["private"]) == ("inf", False)
    assert "NOT private" in capsys.readouterr().out
    rows(tmp_path, *OWN, "privacy.generator=seeded", RDP)
    assert "privacy.generator=seeded makes draws repeatable" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("privacy.epsilonn=3", "privacy.epsilonn"),
        ("+privacy.epsilonn=3", "epsilonn is not an argument of GEPStrategy"),
        ("mechanism=gepp", "mechanism/gepp"),
        ("mechanism=gep,gp mechanism.k=10", "mechanism.k"),
        ("privacy.epsilon=-1", "(config key: privacy.epsilon)"),
        ("privacy.delta=0.01", "(config key: privacy.delta)"),
        ("mechanism.k=auto", "(config key: mechanism.k)"),
        ("data.batch_size=256,5000", "data.batch_size=5000"),
        ("data.batch_size=interval(1,2)", "List its values"),
        ("nonsense", "nonsense"),
        ("trainer.max_epochs=-1", "(config key: trainer.max_epochs)"),
        ("trainer.devices=auto", "(config key: trainer.devices)"),
        ("mechanism=none", "mechanism=none adds no noise"),
        ("--records 0", "--records: '0'"),
    ],
)
def test_what_cannot_work_is_one_line_that_names_the_key_and_exit_code_2(arguments, named, capsys):
    line = refused(capsys, *OWN, RDP, *arguments.split())
    assert named in line
    assert str(config_directory().parent) not in line


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("data.num_workers=-1", "(config key: data.num_workers)"),
        ("data._target_=nowhere.Data", "data could not be built"),
        ("mechanism.groups=shrubs", "(config key: mechanism.groups)"),
    ],
)
def test_data_and_model_that_cannot_be_built(override, named, capsys):
    assert named in refused(capsys, override)


def refused(capsys, *arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("gep-plan: ")
    return line


@pytest.mark.parametrize("arguments", [["--help"], [*OWN, RDP, "mechanism=gep,gp", "--html", "plan.html"]])
def test_help_and_known_sizes_do_not_wait_for_torch(arguments, tmp_path):
    code = f"""
import sys
from lightning_gep.cli.plan.command import main
try:
    main({arguments!r})
except SystemExit as exit_:
    assert exit_.code == 0
print("imported:", {{"torch", "lightning", "opacus"}} & set(sys.modules))
"""
    environment = {**os.environ, "COLUMNS": "100"}
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "imported: set()" in result.stdout
    assert "examples:" in result.stdout or "noise per step" in result.stdout.lower()


@functools.cache
def some_plans():
    gep = replace(GP, mechanism="gep", k=100, clip_embedding=1.0, clip_residual=0.5)
    return tuple(
        plan_noise(settings, RunSize(1257, 6186, batch_size, epochs))
        for settings in (gep, GP)
        for batch_size in (256, 512)
        for epochs in (10, 20)
    )


def test_the_table_fits_and_says_what_it_left_out():
    console = Console(file=StringIO(), width=80)
    console.print(plan_table(some_plans()))
    text = console.file.getvalue()
    assert "…" not in text
    for plan in some_plans():
        assert f"{plan.noise_per_step:#.4g}" in text
    assert "With --html and --json also: sampling rate q" in text


def test_the_least_noise_is_marked_and_never_a_run_without_noise():
    without = plan_noise(replace(GP, epsilon=None, noise_multiplier=0.0), RunSize(1257, 6186, 256, 10))
    plans = [*some_plans(), without]
    for criterion, name in NOISE.items():
        (least,) = [number for number, row in enumerate(figure_rows(plans, [name])) if row[0].startswith("★")]
        noise = [getattr(plan, criterion) for plan in plans]
        assert noise[least] == min(noise[:-1]) > noise[-1] == 0


def test_text_from_the_command_line_is_escaped_in_the_page(tmp_path):
    sizes = [RunSize(1257, 6186, 256, 2, 3), RunSize(1257, 6186, 512, 2, 3)]
    plans = [plan_noise(GP, size, {"seed": f"</script><b>{n}"}) for n, size in enumerate(sizes)]
    write_page(tmp_path / "plan.html", plans)
    text = (tmp_path / "plan.html").read_text("utf-8")
    assert "</script><b>" not in text
    assert "<b>" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


@pytest.mark.browser
def test_a_browser_draws_the_page(browser, tmp_path):  # noqa: F811
    path = tmp_path / "plan.html"
    write_page(path, some_plans())
    check_on_a_phone(browser, path, {"noise": 4, "epsilon": 4})
