import subprocess
import sys
import webbrowser

import pytest

from lightning_gep.cli.report import main
from tests.synthetic_runs import write_run, write_sweep


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "one")


def refused(capsys, *arguments):
    """What the command says on stderr when it ends with exit code 2."""
    with pytest.raises(SystemExit, match="2"):
        main([str(word) for word in arguments])
    return capsys.readouterr().err


def test_the_file_is_written_beside_the_run_or_where_asked(run, tmp_path, capfd):
    for more, path in (([], run / "report.html"), (["--output", str(tmp_path / "x.html")], tmp_path / "x.html")):
        main([str(run), *more])
        assert path.read_text("utf-8").startswith("<!doctype html>")
        assert capfd.readouterr().out == f"gep-report: wrote {path}\n"


@pytest.mark.parametrize("place", ["missing", "empty"])
def test_nothing_to_report_is_one_line_and_exit_code_2(tmp_path, capsys, place):
    (tmp_path / "empty").mkdir()
    said = refused(capsys, tmp_path / place)
    assert said.startswith("gep-report: There is no ")
    assert said.count("\n") == 1
    assert str(tmp_path / place) in said


def test_a_damaged_run_is_named_and_the_others_are_reported(tmp_path, capsys):
    write_sweep(tmp_path, seeds=(0,))
    damaged = next(tmp_path.glob("*epsilon=2*")) / "run.json"
    damaged.write_text("{")
    assert str(damaged) in refused(capsys, tmp_path)
    assert "5 of 6 finished, 1 unreadable" in (tmp_path / "report.html").read_text("utf-8")


def test_open(run, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    main([str(run), "--open"])
    assert opened == [(run / "report.html").resolve().as_uri()]


def test_a_report_needs_neither_torch_nor_lightning(run):
    script = (
        "import sys; from lightning_gep.cli.report import main; main(sys.argv[1:]);"
        "sys.exit(bool({'torch', 'lightning'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", script, str(run), "--output", str(run / "x.html")]
    assert subprocess.run(arguments, check=False, capture_output=True).returncode == 0
