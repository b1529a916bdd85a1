"""gep-init writes a project that works as it is."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from lightning_gep.cli.init import main
from lightning_gep.cli.report import main as report
from lightning_gep.reporting.runs import load


@pytest.mark.slow
def test_the_project_passes_its_own_test(tmp_path, capsys):
    main([str(tmp_path / "project")])
    assert "python train.py" in capsys.readouterr().out
    project = tmp_path / "project"
    options = ["-p", "no:cacheprovider", "--rootdir", ".", "--basetemp", str(tmp_path / "trained")]
    command = [sys.executable, "-m", "pytest", "-q", *options, "."]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    run = load(tmp_path / "trained").single
    assert run.finished
    assert 0 < run.epsilon <= 8.0, "gep-report reads what the project leaves behind"
    assert 0 <= run.newest("test/accuracy") <= 1
    assert {path.name for path in project.glob("*.*")} == {
        "config.yaml", "data.py", "module.py", "test_project.py", "train.py"
    }  # fmt: skip


@pytest.mark.slow
def test_the_commands_of_the_quick_start_run_in_the_project(tmp_path, capsys):
    """Training, resuming, training without noise, and the report."""
    main([str(tmp_path)])
    for label, grey in (("cats", 60), ("dogs", 200)):
        (tmp_path / "data" / "train" / label).mkdir(parents=True)
        for i in range(50):
            Image.new("RGB", (16, 16), (grey + i,) * 3).save(tmp_path / "data" / "train" / label / f"{label}{i}.png")
    config = tmp_path / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["data"] |= {"size": 16, "batch_size": 20}
    settings["trainer"]["max_epochs"] = 1
    config.write_text(yaml.safe_dump(settings))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def trained(*arguments):
        command = [sys.executable, "train.py", *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        return re.search(r"test accuracy [\d.]+% at (.*)", done.stdout)[1]

    spent = trained()
    assert re.fullmatch(r"ε = [67]\.\d+, δ = 0\.01", spent), spent
    (checkpoint,) = tmp_path.glob("runs/version_0/checkpoints/*.ckpt")
    assert trained(checkpoint) == spent, "all of its steps were made"
    page = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()
    without_noise = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    config.write_text(yaml.safe_dump(settings | without_noise))
    assert trained().startswith("ε = inf")
    capsys.readouterr()
    report([str(tmp_path)])
    assert "report.html" in capsys.readouterr().out


def test_without_images_to_test_on_some_are_kept_by_name(tmp_path, monkeypatch, capsys):
    main([str(tmp_path / "project")])
    capsys.readouterr()
    monkeypatch.syspath_prepend(tmp_path / "project")
    data = importlib.import_module("data")
    del sys.modules["data"]
    for label in ("cats", "dogs"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for i in range(100):
            Image.new("RGB", (8, 8)).save(tmp_path / "train" / label / f"{label}{i}.png")

    def parts():
        images = data.Images(tmp_path, size=8)
        images.setup()
        assert images.classes == ["cats", "dogs"]
        return [{Path(part.dataset.samples[i][0]).name for i in part.indices} for part in (images.train, images.test)]

    train, test = parts()
    assert len(train) + len(test) == 200
    assert not train & test
    assert 20 <= len(test) <= 60
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / "cats" / "a.png")
    again, kept = parts()
    assert again - {"a.png"} == train
    assert kept - {"a.png"} == test


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert re.search(r"not empty \(it has thesis\.tex\)", capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_made_is_a_line_not_a_traceback(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "file" / "project")])
    assert capsys.readouterr().err.startswith("gep-init: ")
