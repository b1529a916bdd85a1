import math
import re

from lightning_gep.reporting.report import markdown_report as markdown
from lightning_gep.reporting.report import plain
from lightning_gep.reporting.runs import load
from tests.synthetic_runs import write_run, write_sweep


def tables(text):
    """The cells of every table."""
    blocks = re.findall(r"(?:^\|.*\|\n?)+", text, flags=re.MULTILINE)
    return [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
        for block in blocks
    ]


def test_a_sweep(tmp_path):
    write_sweep(tmp_path)
    text = markdown(load(tmp_path))
    means, runs = tables(text)
    assert len(means) == 2 + 6
    assert len(runs) == 2 + 18
    assert all(len({len(row) for row in table}) == 1 for table in (means, runs))
    assert re.fullmatch(r"\d\d\.\d\d ± \d\.\d\d", means[2][-1])
    assert "18 of 18 finished." in text
    assert "All 18 models together" in text
    assert "Choosing it cost privacy" in text
    assert text.count("(best by validation)") == 1
    assert "### Not covered\n\n- validation and test records" in text


def test_one_run(tmp_path):
    write_run(tmp_path / "one")
    text = markdown(load(tmp_path / "one"))
    assert "# one\n\nFinished. Data: Digits." in text
    assert len(tables(text)) == 1
    assert "differentially private for adding or removing one training record" in text


def test_the_papers_numbers_come_with_what_they_really_cost(tmp_path):
    write_sweep(tmp_path, data="x.SVHN")
    text = markdown(load(tmp_path))
    assert "| GEP, paper | 8 claimed | 18.44 (PLD) | 95.1 |" in text


def test_errors_warnings_and_what_is_not_private(tmp_path):
    write_sweep(tmp_path, states=["failed"])
    write_run(tmp_path / "infinite", epsilon=math.inf)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    text = markdown(load(tmp_path))
    assert "**Warning:**" in text
    assert "RuntimeError: out of memory" in text
    assert "∞ (not private)" in text
    assert "**Not private: 1 run without noise (ε = ∞).**" in text


def test_nonprivate_values_are_left_out(tmp_path):
    write_sweep(tmp_path, nonprivate=True)
    assert "nonprivate/gradient" not in markdown(load(tmp_path))
    assert "0.35" not in markdown(load(tmp_path))


def test_text_from_disk_is_no_markup(tmp_path):
    assert plain("a|b\n<script> [x](javascript:y) `c` *d* _e_ \\") == (
        "a\\|b &lt;script&gt; \\[x\\](javascript:y) \\`c\\` \\*d\\* \\_e\\_ \\\\"
    )
    write_run(tmp_path / "one", job="a | b\n| <img src=x>", status="failed", error="x | <script>\n\n# title")
    text = markdown(load(tmp_path / "one"))
    assert "<" not in text
    assert len({len(row) for row in tables(text)[0]}) == 1
