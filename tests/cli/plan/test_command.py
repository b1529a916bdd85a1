import json
import os
import subprocess
import sys

import pytest
from hydra.utils import instantiate

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.cli.configs import composed, config_directory
from lightning_gep.cli.plan.command import main
from lightning_gep.privacy.rounding import rounded_up
from lightning_gep.strategy.task import planned_steps

OWN = ("--records", "1257", "--parameters", "6186")
RDP = "privacy.accountant=rdp"


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


def test_epsilon_of_a_given_noise(tmp_path, capsys):
    arguments = (*OWN, "privacy.epsilon=null", "privacy.noise_multiplier=1.3", "trainer.max_steps=12")
    pld, rdp = rows(tmp_path, *arguments, "privacy.accountant=pld,rdp")
    assert 0 < pld["epsilon"] < rdp["epsilon"]
    shown = capsys.readouterr().out
    assert all(rounded_up(row["epsilon"]) in shown for row in (pld, rdp))


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
        ("privacy.delta=0.01", "(config key: privacy.delta)"),
        ("mechanism.k=auto", "(config key: mechanism.k)"),
        ("data.batch_size=256,5000", "data.batch_size=5000"),
        ("data.batch_size=interval(1,2)", "List its values"),
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


@pytest.mark.parametrize("arguments", [["--help"], [*OWN, RDP, "mechanism=gep,gp"]])
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


def test_the_table_fits_a_terminal_and_marks_the_least_noise_but_never_a_run_without(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    swept = ("mechanism=gep,gp", "data.batch_size=256,512", "privacy.noise_multiplier=0,1")
    found = rows(tmp_path, *OWN, RDP, *swept, "privacy.epsilon=null")
    text = capsys.readouterr().out
    assert f"training records N {found[0]['records']}" in text, "what all rows share is said once"
    lines = [line for line in text.splitlines() if line.strip().startswith(("gep ", "gp "))]
    assert len(lines) == len(found) == 8
    assert "…" not in text
    least = min((row for row in found if row["noise_per_step"]), key=lambda row: row["noise_per_step"])
    (marked,) = [line for line in lines if "★" in line]
    for criterion in ("noise_per_step", "noise_of_mean"):
        assert f"★ {least[criterion]:#.4g}" in marked
