"""The notebooks of docs/ run from top to bottom in an empty folder, offline; as a script, this stores what they print.

Cells are run by plain Python, so Jupyter is not needed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

NOTEBOOKS = {path.stem: path for path in sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))}
RUN = """
import contextlib, io, json, sys
cells, names, printed = json.load(sys.stdin), {"__name__": "__main__"}, []
for source in cells:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(source, names)
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed_by(notebook, directory):
    """What every code cell prints."""
    sources = json.dumps(["".join(cell["source"]) for cell in code_cells(notebook)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", RUN]
    done = subprocess.run(
        command, input=sources, cwd=directory, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def accuracy(texts):
    return float(re.search(r"accuracy on \d+ test \w+: ([\d.]+)%", "".join(texts))[1])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("images", 70), ("text", 65)])
def test_a_notebook_runs_and_prints_what_it_shows(name, least, tmp_path):
    """Figures differ from run to run, since noise is fresh; the words do not, and both runs learned something."""
    notebook = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))
    stored = ["".join(part["text"] for output in cell["outputs"] for part in [output]) for cell in code_cells(notebook)]
    printed = printed_by(notebook, tmp_path)

    def words(texts):
        return [re.sub(r"\d[\d.,e+-]*", "#", text) for text in texts]

    assert words(printed) == words(stored), "python -m tests.test_notebooks"
    assert min(accuracy(printed), accuracy(stored)) > least
    assert list(tmp_path.rglob("privacy_card.html"))


def test_notebooks_are_small_and_all_of_them_are_tested():
    assert set(NOTEBOOKS) == {"images", "text"}
    for path in NOTEBOOKS.values():
        outputs = [cell["outputs"] for cell in code_cells(json.loads(path.read_text(encoding="utf-8")))]
        assert any(outputs)
        assert len(json.dumps(outputs)) < 4000


def store(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as directory:
        texts = printed_by(notebook, directory)
    for count, (cell, text) in enumerate(zip(code_cells(notebook), texts, strict=True), start=1):
        cell["execution_count"] = count
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for path in NOTEBOOKS.values():
        store(path)
