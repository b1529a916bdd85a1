"""Each test that docs/ names exists, and its table of planted bugs is that of the code."""

import re

import pytest

from tests.planted_bugs import BUGS, ROOT, table

PAGES = ("assurance.md", "guarantee.md", "threat-model.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_is_named_exists(page):
    text = (ROOT / "docs" / page).read_text("utf-8")
    named = set(re.findall(r"([\w/]+\.py)::(\w+)", text))
    assert len(named) > 8
    missing = [
        f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / "tests" / file).read_text("utf-8")
    ]
    assert not missing


def test_every_line_of_the_proof_has_a_test():
    lines = (ROOT / "docs" / "guarantee.md").read_text("utf-8").splitlines()
    steps = [line for line in lines if re.match(r"\| \d+ \|", line)]
    assert len(steps) == 16
    assert all("::test_" in line for line in steps)


def test_the_table_of_planted_bugs_is_that_of_the_code():
    assert table() in (ROOT / "docs" / "assurance.md").read_text("utf-8"), "python -m tests.planted_bugs --list"
    for page in ("docs/privacy.md", "Makefile"):
        assert f"plant{'s' if page.endswith('md') else ''} {len(BUGS)} bugs" in (ROOT / page).read_text("utf-8")
