import subprocess
import sys
import webbrowser

import pytest

from lightning_gep.cli.report import main
from tests.synthetic_runs import write_run, write_sweep


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "one")


def test_files_are_written_beside_the_run_or_where_asked(run, tmp_path, capfd):
    assert main([str(run)]) == 0
    assert (run / "report.html").read_text("utf-8").startswith("<!doctype html>")
    assert str(run / "report.html") in capfd.readouterr().out
    assert main([str(run), "--format", "md"]) == 0
    assert (run / "report.md").read_text("utf-8").startswith("# one")
    assert main([str(run), "--format", "md", "--output", str(tmp_path / "x.md")]) == 0
    assert (tmp_path / "x.md").read_text("utf-8") == (run / "report.md").read_text("utf-8")
    capfd.readouterr()
    assert main([str(run), "--format", "md", "--output", "-"]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ((run / "report.md").read_text("utf-8"), ""), "printing prints the report alone"


@pytest.mark.parametrize("place", ["missing", "empty"])
def test_nothing_to_report_is_one_line_and_exit_code_2(tmp_path, capsys, place):
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / place)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("gep-report: There is no ")
    assert err.count("\n") == 1
    assert str(tmp_path / place) in err


def test_a_damaged_run_is_named_and_the_others_are_reported(tmp_path, capsys):
    write_sweep(tmp_path, seeds=(0,))
    damaged = next(tmp_path.glob("*epsilon=2*")) / "run.json"
    damaged.write_text("{")
    assert main([str(tmp_path), "--format", "md"]) == 2
    assert str(damaged) in capsys.readouterr().err
    assert "5 of 6 finished, 1 unreadable" in (tmp_path / "report.md").read_text("utf-8")


def test_open(run, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main([str(run), "--open"]) == 0
    assert opened == [(run / "report.html").resolve().as_uri()]
    assert main([str(run), "--open", "--output", "-"]) == 2
    assert "--open" in capsys.readouterr().err


def test_a_report_needs_neither_torch_nor_lightning(run):
    script = (
        "import sys; from lightning_gep.cli.report import main; code = main(sys.argv[1:]);"
        "sys.exit(code or bool({'torch', 'lightning'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", script, str(run), "--output", str(run / "x.html")]
    assert subprocess.run(arguments, check=False, capture_output=True).returncode == 0
