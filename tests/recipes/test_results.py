"""`python -m recipes.results`, run small: what is trained, what is kept, and what happens when something goes wrong."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from omegaconf import OmegaConf

from lightning_gep.cli.job import changed_settings
from lightning_gep.privacy import ledger
from lightning_gep.reporting.records import RunRecord
from recipes import results
from recipes.running import runner
from recipes.running.outcome import RESULTS, counts, read_result, result_file
from recipes.running.parking import fetch
from recipes.running.runner import Job, Places, work
from recipes.running.settings import composed
from recipes.tables import NO_PRIVACY, RANDOM_BASIS, TABLE1, runs_in_order
from tests import data_files
from tests.small_runs import small, start_here

MNIST_GP = TABLE1.runs(["mnist_gp_eps2"], seeds=[0])[0]
SMALL_GP = ["--only", "mnist_gp_eps2", "--seeds", "0"]


@pytest.fixture
def started(monkeypatch):
    """Jobs run in this process. The list has the arguments of those that were started."""
    seen = []
    monkeypatch.setattr(runner, "start", lambda arguments, log: seen.append(arguments) or start_here(arguments, log))
    return seen


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    data_files.write_mnist(directory / "MNIST" / "raw")
    data_files.write_npz(directory / "imagenet32_aux.npz", 20, labelled=False)
    return directory


def where(data, tmp_path):
    return ["--data-directory", str(data), "--work", str(tmp_path / "work"), "--output", str(tmp_path / "out")]


@pytest.mark.parametrize(
    "run", [NO_PRIVACY.runs(["mnist"])[0], MNIST_GP, RANDOM_BASIS.runs(["cifar10_k500"])[0]], ids=lambda run: run.name
)
def test_a_run_leaves_a_result_that_names_no_path(run, small_data, tmp_path, started):
    # Of two batches with 4 of 30 records both can be empty, and such a step logs no projection error.
    extra = small(run, **({"data.batch_size": 10} if run.table == "random_basis" else {}))
    outcome = work([run], Places(small_data, tmp_path / "work", tmp_path / "out", tuple(extra)))
    assert str(outcome) == "Runs: 1 finished now."
    result = read_result(result_file(tmp_path / "out", run))
    assert (result["experiment"], result["extra_overrides"]) == (run.cell.experiment, extra)
    assert (result["seed"], result["steps"], result["private"]) == (0, 2, run.table != "no_privacy")
    assert [step for step, _ in result["curves"]["test_accuracy"]] == [1, 2]
    assert result["curves"]["test_accuracy"][-1][1] == pytest.approx(result["test_accuracy"], abs=1e-6)
    if result["private"]:
        assert result["curves"]["epsilon"][-1][1] == pytest.approx(result["epsilon"], abs=1e-6)
    assert ("nonprivate_projection_error" in result["curves"]) == (run.table == "random_basis")
    assert str(tmp_path) not in json.dumps(result)
    assert str(small_data) not in json.dumps(result)


def test_the_command_runs_what_is_missing_once_and_other_settings_are_another_run(mnist, tmp_path, started, capsys):
    words, extra = [*where(mnist, tmp_path), *SMALL_GP], small(MNIST_GP)
    assert results.main([*words, *extra]) == 0
    said = capsys.readouterr().out
    assert len(started) == 2, "Table 1 and the table on thresholds have a cell of that name"
    assert f"With {' '.join(extra)} these are not results of a table" in said
    assert not (tmp_path / "out" / "README.md").exists()
    assert results.main([*words, *extra]) == 0
    assert "Runs: 2 there already." in capsys.readouterr().out
    assert len(started) == 2
    result = read_result(result_file(tmp_path / "out", MNIST_GP))
    assert not counts(result, MNIST_GP)
    assert not Job(MNIST_GP, Places(mnist, tmp_path / "work", tmp_path / "out")).is_done()
    own = {**result, "extra_overrides": []}
    assert counts(own, MNIST_GP)
    for change in ({"overrides": ["mechanism.clip_norm=1"]}, {"seed": 1}, {"experiment": "table1/mnist_gp_eps5"}):
        assert not counts({**own, **change}, MNIST_GP)


def test_missing_data_is_one_line_and_the_others_run(mnist, tmp_path, started, capsys):
    words = [*where(mnist, tmp_path), "--seeds", "0", "--only"]
    assert results.main([*words, "svhn_gp_eps2", "svhn_gp_eps5", "mnist_best_gp", *small(MNIST_GP)]) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "not run. SVHN (train) is not in directory=" in line]
    assert [line.split(":")[0] for line in lines] == ["table1-svhn_gp_eps2-seed0", "table1-svhn_gp_eps5-seed0"]
    assert len(started) == 1
    assert "1 finished now" in said
    assert "2 without data" in said
    assert results.main([*words, "svhn_gp_eps2", *small(MNIST_GP)]) == 1, "nothing could run"


def test_a_failed_run_says_why_and_the_exit_code_is_1(mnist, tmp_path, started, capsys):
    words = [*where(mnist, tmp_path), *SMALL_GP]
    assert results.main([*words, *small(MNIST_GP, **{"data.batch_size": 31})]) == 1
    said = capsys.readouterr().out
    assert "table1-mnist_gp_eps2-seed0: failed. batch_size=31 is above the 30 training images" in said
    assert results.main([*words, *small(MNIST_GP), "trainer.max_stps=1"]) == 1
    assert "failed. Could not override 'trainer.max_stps'" in capsys.readouterr().out
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "mnist_gpp"], "--only mnist_gpp matches no table or cell. Tables: accuracy_against_k, "),
        (["--only", "table1", "--seeds", "0", "7"], "--seeds 7: no chosen cell has this seed"),
        (["mnist_gp_eps2"], "'mnist_gp_eps2' is not an override. Write KEY=VALUE, or --only mnist_gp_eps2"),
        (["--jobs", "0"], "--jobs 0 would run nothing"),
        (["--minutes", "nan"], "--minutes nan leaves no time to run"),
        (["--output", str(RESULTS), "trainer.max_steps=2"], "do not belong there. Leave --output"),
    ],
)
def test_an_option_that_cannot_work_is_a_line_and_exit_code_2(arguments, message, started, capsys):
    with pytest.raises(SystemExit, match="2"):
        results.main(arguments)
    assert message in capsys.readouterr().err
    assert not started


def test_a_dry_run_lists_runs_with_their_commands(mnist, tmp_path, started, capsys):
    assert results.main([*where(mnist, tmp_path), "--only", "svhn_ordinary_*", "--dry-run"]) == 0
    gp, gep = capsys.readouterr().out.splitlines()
    assert gp.startswith("table1-svhn_ordinary_gp_eps5-seed0: not run: gep-train experiment=table1/svhn_gp_eps5 ")
    assert " data.extra=false " in gep
    assert f"data.directory='{mnist}'" in gep
    assert not started


def kill_once(monkeypatch, number, when=lambda: True):
    """Sends a signal to this process the first time it sleeps while `when` holds."""
    sleep, left = time.sleep, [number]

    def sleeping(seconds):
        if left and when():
            os.kill(os.getpid(), left.pop())
        sleep(min(seconds, 0.05))

    monkeypatch.setattr(time, "sleep", sleeping)


def released(directory):
    """Steps in the ledger of a run, which is on disk before a step is made."""
    contents = [ledger.read_or_none(path) for path in (directory / "privacy").glob("*.ledger")]
    return max((content.count for content in contents if content is not None), default=0)


@pytest.mark.slow
def test_an_interrupted_run_is_continued_elsewhere_by_the_same_command(mnist, tmp_path, monkeypatch):
    steps = 30
    extra = tuple(small(MNIST_GP, **{"trainer.max_steps": steps, "trainer.max_epochs": 100}))
    places = Places(mnist, tmp_path / "work", tmp_path / "out", extra)
    directory = Job(MNIST_GP, places).directory

    kill_once(monkeypatch, signal.SIGINT, lambda: released(directory) >= 2)
    cut = work([MNIST_GP], places)
    assert (dict(cut.names), cut.exit_code) == ({"interrupted": [MNIST_GP.name]}, 130)
    before = RunRecord.read(directory)
    assert before.status == "interrupted"
    assert 1 <= before.step < steps
    # Another machine has the results with what is unfinished among them, and another place for data.
    shutil.rmtree(directory)
    data = shutil.copytree(mnist, tmp_path / "elsewhere" / "data")
    parked = [file for file in (tmp_path / "out" / "unfinished").rglob("*") if file.is_file()]
    assert {file.suffix for file in parked} == {".json", ".csv", ".ledger", ".weights", ".ckpt"}
    assert not [file.name for file in parked if str(tmp_path).encode() in file.read_bytes()]
    places = Places(data, tmp_path / "elsewhere" / "work", tmp_path / "out", extra)
    monkeypatch.setattr(runner, "start", start_here)  # another process would only take longer
    outcome = work([MNIST_GP], places)
    assert str(outcome) == "Runs: 1 finished now."
    result = read_result(result_file(tmp_path / "out", MNIST_GP))
    assert (result["steps"], result["attempts"]) == (steps, 2)
    counted = released(tmp_path / "elsewhere" / "work" / directory.name)
    assert result["steps_counted"] == counted <= steps + 1, "it was saved when it was interrupted"
    assert list((tmp_path / "out" / "unfinished").iterdir()) == [], "a finished run is not parked any more"
    assert len(result["curves"]["test_accuracy"]) <= 40
    assert result["curves"]["test_accuracy"][-1][0] == steps


def test_the_committed_unfinished_runs_are_those_of_today_s_settings(tmp_path):
    unfinished = set((RESULTS / "unfinished").iterdir()) if (RESULTS / "unfinished").exists() else set()
    for parked in unfinished:
        (run,) = [run for run in runs_in_order() if parked.name.startswith(run.name)]
        assert parked == Job(run, Places(tmp_path, tmp_path, RESULTS)).parked
        fetch(parked, tmp_path / parked.name, tmp_path)
        now = OmegaConf.to_container(composed(run, [f"data.directory={tmp_path}"]), resolve=True)
        assert changed_settings(RunRecord.read(tmp_path / parked.name).config, now) == []


@pytest.fixture
def endless(monkeypatch):
    """Runs that end when they are interrupted."""
    begun = []
    sleep = ["sleep", "600"]
    monkeypatch.setattr(
        runner, "start", lambda *_: begun.append(subprocess.Popen(sleep, start_new_session=True)) or begun[-1]
    )
    yield begun
    assert {process.returncode for process in begun} == {-signal.SIGINT}


def test_when_time_is_up_what_runs_is_interrupted_and_nothing_else_is_started(mnist, tmp_path, endless):
    runs = TABLE1.runs(["mnist_*_eps2"], seeds=[0])
    outcome = work(runs, Places(mnist, tmp_path / "work", tmp_path / "out"), seconds=0.1)
    assert len(endless) == 2
    assert dict(outcome.names) == {"interrupted": [run.name for run in runs[:2]]}
    assert outcome.exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["terminated", "terminal closed"])
def test_being_stopped_from_outside_is_like_ctrl_c(number, mnist, tmp_path, endless, monkeypatch, capsys, request):
    before = signal.signal(number, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(number, before))
    kill_once(monkeypatch, number)
    assert results.main([*where(mnist, tmp_path), "--only", "mnist_best_gp", "--jobs", "1"]) == 130
    assert len(endless) == 1
    assert "interrupted; the same command continues it" in capsys.readouterr().out
    assert signal.getsignal(number) == signal.SIG_DFL
