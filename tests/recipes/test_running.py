"""The recipes' commands, run small: what is run, what is kept, and what happens when something goes wrong."""

import importlib
import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from lightning_gep.privacy import ledger
from lightning_gep.reporting.records import RunRecord
from recipes import results, table1
from recipes.all_tables import TABLES
from recipes.running import command, jobs, queue
from recipes.running.cells import Run
from recipes.running.jobs import Job, Places
from recipes.running.outcome import RESULTS, counts, read_result, result_file, results_of
from recipes.running.overview import README
from recipes.running.progress import Progress
from recipes.running.queue import Queue
from tests import data_files
from tests.small_runs import small, start_here

COMMANDS = re.findall(r"^\| `(python -m recipes\.(\w+) [^`]*)`", README.read_text(), re.MULTILINE)
TABLE_COMMANDS = [(words, name) for words, name in COMMANDS if name in {table.name for table in TABLES}]
MNIST_GP = table1.TABLE.runs(["mnist_gp_eps2"], seeds=[0])[0]


@pytest.fixture
def started(monkeypatch):
    """Jobs run in this process. The list has the arguments of those that were started."""
    seen = []

    def start(arguments, log):
        seen.append(arguments)
        return start_here(arguments, log)

    monkeypatch.setattr(jobs, "start", start)
    return seen


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    data_files.write_mnist(directory)
    data_files.write_npz(directory / "imagenet32_aux.npz", 20, labelled=False)
    return directory


def where(tmp_path):
    return ["--work", str(tmp_path / "work"), "--output", str(tmp_path / "out")]


def test_every_recipe_is_in_the_readme():
    not_a_table = {"__init__", "all_tables", "results", "tabular"}
    recipes = {path.stem for path in README.parent.glob("*.py")} - not_a_table
    assert {name for _, name in COMMANDS} == recipes
    assert len(TABLE_COMMANDS) == len(TABLES)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(("words", "name"), TABLE_COMMANDS, ids=[name for _, name in TABLE_COMMANDS])
def test_each_command_runs_as_printed(words, name, small_data, tmp_path, started, monkeypatch, capsys):
    before = sorted(RESULTS.rglob("*"))
    runs = importlib.import_module(f"recipes.{name}").TABLE.runs()
    printed = words.replace("DIR", str(small_data)).split()[3:]
    # Of two batches with 4 of 30 records both can be empty, and such a step logs no projection error.
    extra = small(runs[0], **({"data.batch_size": 10} if name == "random_basis" else {}))
    chosen = ["--only", runs[0].cell.name, "--seeds", "0", *extra]
    monkeypatch.setattr(sys, "argv", [name, *printed, *where(tmp_path), *chosen])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"recipes.{name}", run_name="__main__")
    said = capsys.readouterr().out
    assert end.value.code == 0, said
    assert sorted(RESULTS.rglob("*")) == before, "a short run is no result"
    assert "Runs: 1 finished now." in said
    assert "not run" in said
    assert f"With {' '.join(extra)} these are no results" in said
    result = read_result(result_file(tmp_path / "out", runs[0]))
    assert (result["experiment"], result["extra_overrides"]) == (runs[0].cell.experiment, extra)
    assert (result["seed"], result["steps"], result["private"]) == (0, 2, name != "no_privacy")
    assert [step for step, _ in result["curves"]["test_accuracy"]] == [1, 2]
    assert result["curves"]["test_accuracy"][-1][1] == pytest.approx(result["test_accuracy"], abs=1e-6)
    if name != "no_privacy":
        assert result["curves"]["epsilon"][-1][1] == pytest.approx(result["epsilon"], abs=1e-6)
    assert str(tmp_path) not in json.dumps(result)
    assert str(small_data) not in json.dumps(result)
    assert ("nonprivate_projection_error" in result["curves"]) == (name == "random_basis")


def test_all_tables_run_what_is_missing_and_say_what_is_open(mnist, tmp_path, started, capsys):
    words = ["--data-directory", str(mnist), *where(tmp_path), "--only", "mnist_gp_eps2", "--seeds", "0"]
    assert results.main([*words, *small(MNIST_GP)]) == 0
    said = capsys.readouterr().out
    assert "Runs: 1 there already" not in said
    assert re.search(r"^  MNIST, ε = 2: GEP: not run$", said, re.MULTILINE)
    assert len(re.findall(r": not run$", said, re.MULTILINE)) == sum(len(table.cells) for table in TABLES)
    assert len(started) == 2, "Table 1 and the table on thresholds have a cell of that name"
    assert not (tmp_path / "out" / "README.md").exists(), "runs with other settings are not on the page"


def test_all_tables_measure_the_figures_that_are_not_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "runs_in_order", list)
    figures = tmp_path / "out" / "figures"
    figures.mkdir(parents=True)
    for name in ("measured_mnist.json", "stable_rank_mnist.svg"):
        shutil.copy(RESULTS / "figures" / name, figures)
    assert results.main(["--data-directory", str(tmp_path), *where(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "stable_rank of mnist" not in said
    assert len(re.findall(r"^\w+ of \w+: not run\. .*cifar10_train\.npz", said, re.MULTILINE)) == 3
    assert len(re.findall(r"^\w+ of \w+: not run\. .*mnist_train\.npz", said, re.MULTILINE)) == 2
    assert (tmp_path / "out" / "README.md").exists()


def test_what_is_there_is_not_run_again_and_other_settings_are_another_run(mnist, tmp_path, started, capsys):
    arguments = ["--data-directory", str(mnist), *where(tmp_path), "--only", "mnist_gp_eps2", "--seeds", "0"]
    extra = small(MNIST_GP)
    assert command.main(table1.TABLE, [*arguments, *extra]) == 0
    assert command.main(table1.TABLE, [*arguments, *extra]) == 0
    assert "Runs: 1 there already." in capsys.readouterr().out
    assert len(started) == 1
    assert command.main(table1.TABLE, [*arguments, *small(MNIST_GP, **{"optimizer.lr": 0.2})]) == 0
    assert len(started) == 2

    result = read_result(result_file(tmp_path / "out", MNIST_GP))
    assert result["config"]["optimizer"]["lr"] == 0.2
    assert not counts(result, MNIST_GP)
    assert results_of(table1.TABLE, tmp_path / "out")["mnist_gp_eps2"] == []
    assert not Job.of(MNIST_GP, Places(mnist, tmp_path / "work", tmp_path / "out")).is_done()

    own = {**result, "extra_overrides": []}
    assert counts(own, MNIST_GP)
    assert not counts({**own, "overrides": ["mechanism.clip_norm=1"]}, MNIST_GP)
    assert not counts({**own, "seed": 1}, MNIST_GP)
    assert not counts({**own, "experiment": "table1/mnist_gp_eps5"}, MNIST_GP)


def test_missing_data_are_one_line_and_the_others_run(mnist, tmp_path, started, capsys):
    cells = ["svhn_gp_eps2", "svhn_gp_eps5", "mnist_gp_eps2"]
    arguments = ["--data-directory", str(mnist), *where(tmp_path), "--only", *cells, "--seeds", "0", "--jobs", "1"]
    assert command.main(table1.TABLE, [*arguments, *small(MNIST_GP)]) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "SVHN (train) is not in directory=" in line]
    assert [line.split(":")[0] for line in lines] == ["table1-svhn_gp_eps2-seed0", "table1-svhn_gp_eps5-seed0"]
    assert all("put svhn_train.npz or train_32x32.mat there" in line for line in lines)
    assert len(started) == 2, "what the first job missed, the second would miss too"
    assert "Runs: 1 finished now, 2 without data." in said
    assert command.main(table1.TABLE, [*arguments[:-4], "--only", "svhn_gp_eps2", *small(MNIST_GP)]) == 1


def test_a_failed_run_says_why_and_the_exit_code_is_1(mnist, tmp_path, started, capsys):
    arguments = ["--data-directory", str(mnist), *where(tmp_path), "--only", "mnist_gp_eps2", "--seeds", "0"]
    too_large = small(MNIST_GP, **{"data.batch_size": 31})
    assert command.main(table1.TABLE, [*arguments, *too_large]) == 1
    said = capsys.readouterr().out
    assert "table1-mnist_gp_eps2-seed0: failed. batch_size=31 is above the 30 training images" in said
    assert "Runs: 1 failed." in said
    assert command.main(table1.TABLE, [*arguments, *small(MNIST_GP), "trainer.max_stps=1"]) == 1
    assert "failed. Could not override 'trainer.max_stps'" in capsys.readouterr().out
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "mnist_gpp"], "--only mnist_gpp fits no cell. There are: mnist_gp_eps2, "),
        (["--only", "mnist_gp_eps2", "--seeds", "7"], "--seeds 7: no cell has such a seed"),
        (["mnist_gp_eps2"], "'mnist_gp_eps2' is not an override. Write KEY=VALUE, or --only mnist_gp_eps2"),
        (["--only", "mnist_gp_eps2", "--seeds", "0", "7"], "--seeds 7: no cell has such a seed"),
        (["--jobs", "0"], "--jobs 0 would run nothing"),
        (["--minutes", "0"], "--minutes 0 leaves no time to run"),
        (["--minutes", "nan"], "--minutes nan leaves no time to run"),
        (["--output", str(RESULTS), "trainer.max_steps=2"], "runs with trainer.max_steps=2 are none. Leave --output"),
    ],
)
def test_what_cannot_work_is_a_line_and_exit_code_2(arguments, message, started, capsys):
    assert command.main(table1.TABLE, arguments) == 2
    assert message in capsys.readouterr().err
    assert not started


def test_a_dry_run_lists_runs_with_their_commands(mnist, tmp_path, started, capsys):
    arguments = ["--data-directory", str(mnist), *where(tmp_path), "--only", "svhn_ordinary_*", "--dry-run"]
    assert command.main(table1.TABLE, arguments) == 0
    gp, gep = capsys.readouterr().out.splitlines()
    assert gp.startswith("table1-svhn_ordinary_gp_eps5-seed0: not run: gep-train experiment=table1/svhn_gp_eps5 ")
    assert " data.extra=false " in gep
    assert f"data.directory='{mnist}'" in gep
    assert not started


class InterruptAfter(Progress):
    """As if the user pressed Ctrl-C once a job has made so many steps."""

    def __init__(self, steps):
        super().__init__(Console(file=io.StringIO()))
        self.steps = steps

    def show(self, jobs):
        if any(released(job.directory) >= self.steps for job in jobs):
            raise KeyboardInterrupt


def released(directory):
    """Steps in the ledger of a run, which is on disk before a step is made."""
    contents = [ledger.read_or_none(path) for path in (directory / "privacy").glob("*.ledger")]
    return max((content.count for content in contents if content is not None), default=0)


def test_an_interrupted_run_is_continued_by_the_same_command(mnist, tmp_path, monkeypatch, request):
    monkeypatch.setattr(queue, "SECONDS_BETWEEN_LOOKS", 0.05)
    # In the background of a script Ctrl-C is ignored, and a process inherits that unless its parent has a handler.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))
    steps = 200
    extra = small(MNIST_GP, **{"trainer.max_steps": steps, "trainer.max_epochs": 100})
    places = Places(mnist, tmp_path / "work", tmp_path / "out", tuple(extra))
    cut = Queue([MNIST_GP], places, InterruptAfter(2)).work()
    assert (cut.interrupted, cut.finished, cut.exit_code) == ([MNIST_GP.name], [], 130)
    (directory,) = (tmp_path / "work").iterdir()
    before = RunRecord.read(directory)
    assert before.status == "interrupted"
    assert 1 <= before.step < steps
    # Another machine has the results with what is unfinished among them, and its own place for data.
    shutil.rmtree(directory)
    (moved := tmp_path / "elsewhere").mkdir()
    mnist = shutil.copytree(mnist, moved / "data")
    assert_names_no_path(tmp_path / "out" / "unfinished", tmp_path)
    places = Places(mnist, moved / "work", tmp_path / "out", tuple(extra))
    directory = moved / "work" / directory.name

    monkeypatch.setattr(jobs, "start", start_here)  # another process would only take longer
    progress = Progress(Console(file=io.StringIO()))
    outcome = Queue([MNIST_GP], places, progress).work()
    assert (outcome.finished, outcome.exit_code) == ([MNIST_GP.name], 0), progress.console.file.getvalue()
    assert f"{MNIST_GP.name}: goes on\n" in progress.console.file.getvalue()
    result = read_result(result_file(tmp_path / "out", MNIST_GP))
    assert (result["steps"], result["attempts"]) == (steps, 2)
    assert result["steps_counted"] == released(directory) <= steps + 1, "it was saved when it was interrupted"
    assert list((tmp_path / "out" / "unfinished").iterdir()) == [], "what is finished waits no longer"
    assert len(result["curves"]["test_accuracy"]) <= 40
    assert result["curves"]["test_accuracy"][-1][0] == steps


def assert_names_no_path(parked, path):
    files = [file for file in parked.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".json", ".csv", ".ledger", ".weights", ".ckpt"}
    assert not [file.name for file in files if str(path).encode() in file.read_bytes()]


class Endless:
    """A process that ends when it is interrupted."""

    def __init__(self, *_):
        self.code = None

    def poll(self):
        return self.code

    def send_signal(self, number):
        assert number == signal.SIGINT
        self.code = 1

    def wait(self, timeout=None):
        assert self.code is not None, "it was not interrupted"
        return self.code


def test_when_time_is_up_what_runs_is_interrupted_and_nothing_else_is_started(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(jobs, "start", lambda arguments, log: begun.append(Endless()) or begun[-1])
    progress = Progress(Console(file=io.StringIO()))
    runs = table1.TABLE.runs(["mnist_*_eps2"], seeds=[0])
    outcome = Queue(runs, Places(tmp_path, tmp_path / "work", tmp_path / "out"), progress).work(seconds=0.1)
    assert [process.code for process in begun] == [1, 1]
    assert outcome.interrupted == [run.name for run in runs[:2]]
    assert outcome.exit_code == 0
    assert "Time is up" in progress.console.file.getvalue()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["terminated", "terminal closed"])
def test_being_stopped_from_outside_is_like_ctrl_c(number, tmp_path, monkeypatch, capsys, request):
    begun = []
    monkeypatch.setattr(jobs, "start", lambda arguments, log: begun.append(Endless()) or begun[-1])
    monkeypatch.setattr(Progress, "show", lambda self, jobs: os.kill(os.getpid(), number))
    before = signal.signal(number, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(number, before))
    assert command.main(table1.TABLE, [*where(tmp_path), "--only", "mnist_gp_eps2", "--jobs", "1"]) == 130
    assert [process.code for process in begun] == [1]
    assert "Interrupted. The same command goes on." in capsys.readouterr().out
    assert signal.getsignal(number) == signal.SIG_DFL


def test_under_nohup_a_terminal_that_is_closed_changes_nothing(tmp_path, monkeypatch, request):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    handlers = []
    monkeypatch.setattr(jobs, "start", lambda arguments, log: Endless())
    monkeypatch.setattr(Progress, "show", lambda self, jobs: handlers.append(signal.getsignal(signal.SIGHUP)))
    words = [*where(tmp_path), "--only", "mnist_gp_eps2", "--jobs", "1", "--minutes", "0.001"]
    assert command.main(table1.TABLE, words) == 0
    assert set(handlers) == {signal.SIG_IGN}


def test_a_process_that_does_not_stop_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "SECONDS_TO_STOP", 0.2)
    deaf = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"]
    job = Job.of(MNIST_GP, Places(tmp_path, tmp_path, tmp_path))
    job.process = subprocess.Popen(deaf)
    job.stop()
    job.wait()
    assert job.process.poll() != 0


def test_progress_is_a_table_on_a_terminal_and_lines_elsewhere(tmp_path, monkeypatch):
    job = Job.of(Run("table1", MNIST_GP.cell, 0), Places(tmp_path, tmp_path, tmp_path))
    (job.directory / "metrics").mkdir(parents=True)
    (job.directory / "metrics" / "metrics.csv").write_text("step,test/accuracy\n5,0.5\n10,0.625\n")
    RunRecord("job", step=12, planned_steps=50, privacy={"epsilon": 0.1234}).write(job.directory)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120, height=30)
    with Progress(terminal) as progress:
        progress.show([job])
        progress.say("a line [that] stays")
    shown = terminal.file.getvalue()
    for part in ("running", "12/50", "0.124", "62.5 %", "a line [that] stays"):
        assert part in shown
    elsewhere = Progress(Console(file=io.StringIO()))
    elsewhere.show([job])
    assert elsewhere.console.file.getvalue() == "", "a line every minute is enough"
    monkeypatch.setattr(elsewhere, "_next_lines", 0.0)
    elsewhere.show([job])
    assert elsewhere.console.file.getvalue().startswith("table1-mnist_gp_eps2-seed0: 12/50 steps, ε 0.124, ")
