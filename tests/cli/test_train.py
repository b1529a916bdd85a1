import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from lightning_gep.cli.configs import composed
from lightning_gep.cli.console import summary_rows
from lightning_gep.cli.job import train
from lightning_gep.cli.train import main, single_job
from lightning_gep.reporting.records import RunRecord
from tests.commands import gep_train

REPOSITORY = Path(__file__).resolve().parents[2]
SHORT = ("trainer.max_epochs=1", "data.batch_size=64", "trainer.accelerator=cpu")
QUICKLY_ACCOUNTED = "privacy.accountant=rdp"


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_directory(cwd):
    (directory,) = (cwd / "outputs").glob("*/*")
    return directory


@pytest.mark.slow
def test_a_short_run_from_end_to_end(tmp_path):
    result = gep_train(*SHORT, QUICKLY_ACCOUNTED, cwd=tmp_path, COLUMNS="200")
    assert result.returncode == 0, result.stderr
    directory = run_directory(tmp_path)
    assert (directory / "checkpoints" / "last.ckpt").is_file()
    assert "privacy/epsilon" in (directory / "metrics" / "metrics.csv").read_text()
    assert "epsilon: 8.0" in (directory / ".hydra" / "config.yaml").read_text()
    for part in ("GEP", "Test", "ε spent / target", " / 8", "0.0001", "20 / 20", str(directory.relative_to(tmp_path))):
        assert part in result.stdout


@pytest.mark.parametrize("mechanism", ["gep", "bgep", "gp", "spectral"])
def test_every_mechanism_trains_and_keeps_its_budget(mechanism, tmp_path):
    record = train(composed([f"mechanism={mechanism}", QUICKLY_ACCOUNTED, *SHORT, "trainer.max_steps=5"], tmp_path))
    assert record.config["mechanism"]["mechanism"] == mechanism
    assert record.privacy["private"]
    assert record.privacy["steps"] == 5
    assert 7.9 < record.privacy["epsilon"] <= 8.0
    assert 0 <= record.metrics["test/accuracy"] <= 1


@pytest.mark.parametrize(
    ("override", "message", "key"),
    [
        ("privacy.delta=0.9", "delta=0.9 is not below 1/N", "privacy.delta"),
        ("mechanism.k=99999", "k=99999 basis vectors are more than the 6186", "mechanism.k"),
        ("threads=0", "threads must be a whole number above 0", None),
        ("trainer.max_epochs=-1", "max_epochs", None),
    ],
)
def test_a_value_that_cannot_work_is_one_line_with_its_key_and_exit_code_2(override, message, key, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        single_job(composed([override], tmp_path), [])
    assert exit_.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("gep-train:")]
    assert message in line
    assert key is None or line.endswith(f"(config key: {key})")


@pytest.mark.parametrize(
    ("override", "named"),
    [("data.num_workers=-1", "gep-train: num_workers must be"), ("privacy.epsilonn=3", "epsilonn")],
)
def test_the_command_gives_one_line_without_a_traceback(override, named, tmp_path):
    result = gep_train(override, cwd=tmp_path)
    assert result.returncode == 2
    assert named in result.stderr
    assert "Traceback" not in result.stderr


def test_without_hydra_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("lightning_gep.cli.commands.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "pip install 'lightning-gep[cli]'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_wheel_runs_in_another_environment(tmp_path, monkeypatch):
    """The configs are in the wheel: nothing of the clone is in reach of the installed command."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheels, environment, elsewhere = tmp_path / "wheels", tmp_path / "environment", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels, cwd=REPOSITORY)
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    (wheel,) = wheels.glob("*.whl")
    commands = environment / "bin"
    pip = [sys.executable, "-m", "pip", "--python", commands / "python", "install", "--quiet", "--no-deps"]
    run(*pip, "--no-index", wheel, cwd=tmp_path)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    # The dependencies are borrowed. A path listed in a .pth file is not searched for further .pth files, so the clone
    # stays out of reach where it is installed in editable mode.
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    found = run(commands / "python", "-c", "import lightning_gep; print(lightning_gep.__file__)", cwd=elsewhere)
    assert found.startswith(str(site_packages))
    said = run(commands / "gep-train", "-m", "seed=0,1", "sweep=two", QUICKLY_ACCOUNTED, *SHORT, cwd=elsewhere)
    assert "2 jobs: 2 finished" in said
    run(commands / "gep-report", "sweeps/two", cwd=elsewhere)
    assert (elsewhere / "sweeps" / "two" / "report.html").stat().st_size > 10**6


def report(**changes):
    return {
        "private": True,
        "epsilon": 7.99621,
        "delta": 1e-4,
        "target_epsilon": 8.0,
        "steps": 150,
        "noise_multiplier": 1.0,
        **changes,
    }


def rows(privacy, directory=Path("outputs/a")):
    metrics = {"test/accuracy": 0.9361, "test/loss": 0.123456, "val/accuracy": 0.5}
    config = {"mechanism": {"mechanism": "gep"}}
    return summary_rows(RunRecord("a", config=config, metrics=metrics, privacy=privacy, seconds=12.34), directory)


def test_the_summary_rounds_epsilon_up_and_says_when_a_run_was_not_private(tmp_path):
    assert rows(report())["ε spent / target"] == "7.997 / 8"
    assert rows(report(target_epsilon=None))["ε spent / target"] == "7.997"
    without_noise = report(epsilon="inf", noise_multiplier=0.0, private=False)
    assert rows(without_noise)["Privacy"] == "Not private: 1 run without noise (ε = ∞)."
    assert "reproducible" in rows(report(epsilon="inf", private=False))["Privacy"]
    assert rows(report())["Test accuracy"] == "93.6 %"
    assert rows(report())["test/loss"] == "0.1235"
    assert rows(report(), tmp_path)["Outputs"] == str(tmp_path)


def test_help_shows_examples_and_exit_codes_at_once(tmp_path):
    result = gep_train("--help", cwd=tmp_path)
    assert result.returncode == 0
    for part in (
        "gep-train -m privacy.epsilon=2,5,8",
        "Exit codes",
        "hydra/launcher=",
        "-sc install=bash",
        "mechanism: bgep",
    ):
        assert part in result.stdout
