import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch
from omegaconf import OmegaConf

from lightning_gep.cli.sweep import RepeatAndSelectSweeper
from lightning_gep.cli.sweep_cost import check_stays_here, write_sweep_cards
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy import ledger
from lightning_gep.privacy.card.rendering import headline
from lightning_gep.reporting.records import RunRecord, SweepRecord, locked
from tests.commands import gep_train, start

FIVE_STEPS = ("trainer.max_epochs=1", "privacy.accountant=rdp", "trainer.accelerator=cpu", "mechanism.k=20")


def command(*overrides):
    return [sys.executable, "-m", "lightning_gep.cli.train", "-m", *FIVE_STEPS, *overrides]


def sweep(cwd, *overrides):
    return gep_train("-m", *FIVE_STEPS, *overrides, cwd=cwd)


def sweep_apart(cwd, *overrides, **environment):
    """In a process of its own, as launchers and runs of several processes need it."""
    environment = {**os.environ, **environment}
    return subprocess.run(command(*overrides), cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)


def records(directory):
    return [RunRecord.read(directory / job) for job in SweepRecord.read(directory).jobs]


def card(directory):
    return json.loads((directory / "privacy_card.json").read_text())


def ledger_counts(directory):
    return [ledger.read(path).count for path in directory.glob("*/privacy/*.ledger")]


@pytest.mark.slow
def test_a_sweep_that_is_killed_is_finished_by_the_same_command(tmp_path):
    overrides = ("privacy.epsilon=4,8", "seed=0,1")
    process = start(("-m", *FIVE_STEPS, *overrides), tmp_path)
    wait_until(lambda: "finished" in statuses(tmp_path) and "running" in statuses(tmp_path), process.is_alive)
    process.kill()
    process.join()
    (directory,) = (tmp_path / "sweeps").iterdir()
    assert directory.name.startswith("epsilon-seed-")
    before = {run.job: run for run in records(directory) if run is not None and run.status == "finished"}
    assert 0 < len(before) < 4

    result = sweep(tmp_path, *overrides)
    assert result.returncode == 0, result.stderr
    assert list((tmp_path / "sweeps").iterdir()) == [directory]
    runs = records(directory)
    assert [run.status for run in runs] == ["finished"] * 4
    assert [run.job for run in runs] == [f"privacy.epsilon={e},seed={s}" for e in (4, 8) for s in (0, 1)]
    for run in runs:
        if run.job in before:
            assert run == before[run.job], "a finished job was touched"
    assert f"{len(before)} of 4 jobs are finished already" in result.stdout
    assert "4 jobs: 4 finished" in result.stdout
    assert "Best by validation accuracy" in result.stdout
    assert ledger_counts(directory) == [5, 5, 5, 5]
    for run in runs:
        assert run.privacy["epsilon"] <= run.privacy["target_epsilon"]

    total = card(directory)["selection"]
    assert (total["rule"], total["runs"], total["complete"]) == ("composition", 4, True)
    assert total["epsilon"] > 8.0, "four runs cost more than the dearest of them"
    assert total["explanation"] in " ".join(result.stdout.split())
    assert all(card(directory / run.job / "checkpoints")["selection"] == total for run in runs)


def statuses(tmp_path):
    found = [RunRecord.read(path.parent) for path in tmp_path.glob("sweeps/*/*/run.json")]
    return [run.status for run in found if run is not None]


def wait_until(condition, is_alive, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert is_alive(), "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("launcher", ["basic", "parallel", "slurm_local", "ray_cluster"])
def test_every_launcher_runs_all_jobs_and_lists_the_one_that_fails(launcher, tmp_path):
    run = sweep if launcher == "basic" else sweep_apart
    overrides = ["sweep=it", "mechanism.k=99999,20", f"hydra/launcher={launcher}", "trainer.max_steps=1"]
    if launcher == "ray_cluster":
        overrides.append(
            "+hydra.launcher.ray.init.include_dashboard=false"
        )  # which takes longer to start than the jobs
    result = run(tmp_path, *overrides)
    assert result.returncode == 1, result.stderr
    runs = records(tmp_path / "sweeps" / "it")
    assert [run.status for run in runs] == ["failed", "finished"], result.stdout
    assert "mechanism.k=99999 failed: k=99999 basis vectors" in result.stdout
    assert "2 jobs: 1 failed, 1 finished" in result.stdout
    log = (tmp_path / "sweeps" / "it" / "mechanism.k=99999" / "console.log").read_text()
    assert "Traceback" in log
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.distributed
def test_jobs_of_a_sweep_with_several_processes_keep_to_their_own_settings(tmp_path):
    result = sweep_apart(tmp_path, "sweep=it", "privacy.epsilon=2,8", "trainer.devices=2", "data.batch_size=128")
    assert result.returncode == 0, result.stderr
    directory = tmp_path / "sweeps" / "it"
    assert [run.privacy["target_epsilon"] for run in records(directory)] == [2.0, 8.0]
    assert ledger_counts(directory) == [5, 5]
    for epsilon in (2, 8):
        log = (directory / f"privacy.epsilon={epsilon}" / "console.log").read_text()
        assert log.count("MEMBER: ") == 2
        assert f"ε at most {epsilon}, δ" in log


@pytest.mark.slow
def test_a_random_number_of_runs_is_drawn_once_and_costs_less_than_all_of_them(tmp_path):
    overrides = (
        "sweep=it",
        "hydra/sweeper=repeat_and_select",
        "hydra.sweeper.mean=1.5",
        "hydra.sweeper.distribution=logarithmic",
        "optimizer.lr=1,2",
    )
    result = sweep(tmp_path, *overrides)
    assert result.returncode == 0, result.stderr
    directory = tmp_path / "sweeps" / "it"
    record = SweepRecord.read(directory)
    drawn = record.repetitions["drawn"]
    assert len(record.jobs) == len(drawn) >= 1
    assert [run.config["optimizer"]["lr"] for run in records(directory)] == [[1, 2][number] for number, _ in drawn]
    assert all(re.fullmatch(r"draw=r[0-9a-f]{8},optimizer\.lr=[12]", job) for job in record.jobs), (
        "no name tells an order"
    )
    for run in records(directory):
        planned = record.repetitions["candidates"]
        assert [(c["sample_rate"], c["steps"], c["delta"]) for c in planned] == [
            (run.privacy["sample_rate"], 5, 1e-4)
        ] * 2
        assert planned[0]["noise_multiplier"] == pytest.approx(run.privacy["noise_multiplier"], rel=1e-12)
    selection = card(directory)["selection"]
    assert selection["rule"] == "repeat_and_select"
    assert 8.0 < selection["epsilon"] < 100.0
    assert "Selected by validation accuracy" in result.stdout
    assert "Publish only the selected run and its card" in result.stdout

    assert sweep(tmp_path, *overrides).returncode == 0
    assert SweepRecord.read(directory).repetitions["drawn"] == drawn
    for changed in (("hydra.sweeper.mean=3",), ("hydra.sweeper.mean=1.5", "privacy.epsilon=1")):
        other = sweep(tmp_path, *overrides[:2], *changed, *overrides[3:])
        assert other.returncode == 2
        assert "gep-train: The sweep it was begun with a mean of 1.5" in other.stderr
        assert "Traceback" not in other.stderr
    grid = sweep(tmp_path, "sweep=it", "optimizer.lr=1,2")
    assert grid.returncode == 2
    assert "is a sweep of another kind" in grid.stderr


def test_nothing_is_selected_before_all_runs_that_were_drawn_are_finished(tmp_path):
    sweeper = RepeatAndSelectSweeper(None, 2.0, "geometric")
    sweeper.directory = tmp_path
    done, going = RunRecord("a", "finished", metrics={"val/accuracy": 0.9}), RunRecord("b", "interrupted")
    assert "Selected" in " ".join(sweeper.closing_words([done, done]))
    for other in (going, None):
        assert "No run is selected" in " ".join(sweeper.closing_words([done, other]))


def test_runs_that_must_stay_secret_are_not_sent_away():
    def logging(**settings):
        return OmegaConf.create(
            {"logger": {"wandb": {"_target_": "lightning_gep.loggers.wandb.PrivateWandbLogger", **settings}}}
        )

    check_stays_here(logging(offline=True))
    check_stays_here(OmegaConf.create({"logger": {"csv": {"_target_": "lightning.pytorch.loggers.CSVLogger"}}}))
    for settings in ({"offline": None}, {"offline": False}, {}):
        with pytest.raises(ConfigurationError, match=r"logger\.wandb\.offline=true"):
            check_stays_here(logging(**settings))


def test_a_second_command_waits_for_the_first(tmp_path):
    directory = tmp_path / "sweeps" / "it"
    directory.mkdir(parents=True)
    with locked(directory):
        result = sweep(tmp_path, "sweep=it", "seed=0,1")
    assert result.returncode == 2
    assert "Another process is training in" in result.stderr
    assert not (directory / "sweep.json").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("privacy.epsilonn=1,2",), "privacy.epsilonn"),
        (("hydra/launcher=nonsense", "seed=0,1"), "nonsense"),
        (("hydra/sweeper=repeat_and_select", "hydra.sweeper.distribution=uniform", "seed=0,1"), "uniform"),
        (("hydra/sweeper=repeat_and_select", "hydra.sweeper.mean=-1", "seed=0,1"), "mean"),
    ],
)
def test_settings_of_a_sweep_that_cannot_work_end_it_before_its_first_job(overrides, message, tmp_path):
    result = sweep(tmp_path, *overrides)
    assert result.returncode == 2
    assert message in result.stderr
    assert not list(tmp_path.glob("sweeps/*/*/run.json"))


@pytest.mark.slow
@pytest.mark.distributed
def test_sigterm_stops_parallel_jobs_with_their_steps_saved(tmp_path):
    overrides = (
        "seed=0,1,2",
        "sweep=it",
        "trainer.max_epochs=300",
        "hydra/launcher=parallel",
        "hydra.launcher.n_jobs=2",
    )
    process = subprocess.Popen(command(*overrides), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    directory = tmp_path / "sweeps" / "it"
    wait_until(lambda: sum(run.step > 0 for run in begun(directory)) == 2, lambda: process.poll() is None)
    process.terminate()
    assert process.wait(120) == 130
    for run in begun(directory):
        saved = torch.load(directory / run.job / "checkpoints" / "last.ckpt", weights_only=False)["global_step"]
        assert (run.status, saved) == ("interrupted", run.step)
    assert len(begun(directory)) == 2


def begun(directory):
    return [RunRecord.read(path.parent) for path in directory.glob("*/run.json")]


@pytest.mark.slow
def test_a_launcher_that_is_not_installed_is_named_with_what_to_install(tmp_path):
    hidden = tmp_path / "hidden" / "hydra_plugins" / "hydra_joblib_launcher"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("")  # found first, and empty
    paths = os.pathsep.join([str(tmp_path / "hidden"), os.environ.get("PYTHONPATH", "")])
    result = sweep_apart(tmp_path, "seed=0,1", "hydra/launcher=parallel", PYTHONPATH=paths)
    assert result.returncode == 2
    assert "pip install 'lightning-gep[joblib]'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_jobs_added_to_a_sweep_are_counted_with_those_that_were_there(tmp_path):
    for seed in (0, 1):
        result = sweep(tmp_path, f"seed={seed},{seed}", "trainer.max_steps=1", "sweep=it")
        assert result.returncode == 0, result.stderr
    directory = tmp_path / "sweeps" / "it"
    assert [run.job for run in records(directory)] == ["seed=0", "seed=1"]
    assert card(directory)["selection"]["runs"] == 2
    two = card(directory)["selection"]["epsilon"]
    begun_anew(directory / "seed=0")
    selection = write_sweep_cards(directory, SweepRecord.read(directory))
    assert selection["runs"] == 3
    assert selection["epsilon"] > two
    kept = directory / "seed=0" / "checkpoints" / "privacy_card-00000000.json"
    kept.unlink()
    assert write_sweep_cards(directory, SweepRecord.read(directory))["epsilon"] == "inf", "it may have been anything"


def begun_anew(job):
    """As if an earlier run in the same place had been begun anew: it has a ledger, and its card was put aside."""
    (path,) = (job / "privacy").glob("*.ledger")
    content = ledger.read(path)
    other = ledger.Ledger.create(path.with_name("0" * 32 + ".ledger"), "0" * 32, content.parameters)
    other.record(content.releases[0], 0)
    other.close()
    earlier = {**card(job / "checkpoints"), "run_id": "0" * 32}
    (job / "checkpoints" / "privacy_card-00000000.json").write_text(json.dumps(earlier))


@pytest.mark.slow
def test_a_job_that_is_not_finished_counts_as_long_as_it_was_planned(tmp_path):
    assert sweep(tmp_path, "seed=0,0", "sweep=it").returncode == 0
    directory = tmp_path / "sweeps" / "it"
    whole = card(directory)["selection"]
    run = records(directory)[0]
    folder = directory / run.job / "checkpoints"
    folder.rename(folder.with_name("elsewhere"))
    assert write_sweep_cards(directory, SweepRecord.read(directory)) == whole, "wherever the job put its card"
    folder.with_name("elsewhere").rename(folder)
    run.status = "interrupted"
    run.write(directory / run.job)
    (path,) = (directory / run.job / "privacy").glob("*.ledger")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    cut = write_sweep_cards(directory, SweepRecord.read(directory))
    assert cut["epsilon"] == whole["epsilon"]
    assert (whole["complete"], cut["complete"]) == (True, False)
    own = card(directory / run.job / "checkpoints")
    assert headline(own) == "One run of a sweep whose cost is not counted yet"
