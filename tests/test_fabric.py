"""The core in a loop of one's own, as docs/fabric.md prints it."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fabric.md"


def test_the_page_about_fabric_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    namespace = {}
    exec(compile(script, "fabric.md", "exec"), namespace)
    assert namespace["account"].steps == namespace["STEPS"]
    assert 2.5 < namespace["account"].epsilon() <= 3.0
    assert "after 20 steps" in capsys.readouterr().out
