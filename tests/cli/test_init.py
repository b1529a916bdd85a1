"""gep-init writes a project that works as it is."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from lightning_gep.cli.init import main
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
