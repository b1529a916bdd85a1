"""The table of docs/audit.md is that of docs/audit.json, which gep-audit wrote."""

import json
import re
from pathlib import Path

import pytest

from lightning_gep.cli.audit.output import shown
from lightning_gep.reporting.text import mechanism_name

DOCS = Path(__file__).parents[2] / "docs"
ROWS = re.findall(
    r"^\| (GEP|B-GEP|GP|Spectral) \| (\d) \| (.*) \|$", (DOCS / "audit.md").read_text("utf-8"), re.MULTILINE
)


def findings(part):
    content = json.loads((DOCS / "audit.json").read_text("utf-8"))
    return [finding for finding in content["findings"] if finding["part"] == part]


def test_the_table_has_every_bound_as_it_was_measured():
    measured = [
        (mechanism_name(one["mechanism"]), f"{one['claimed']:.0f}", *(shown(b["epsilon"]) for b in bounds))
        for one, all_steps in zip(findings("release"), findings("run"), strict=True)
        for bounds in [one["bounds"] + all_steps["bounds"]]
    ]
    assert [(name, claim, *cells.split(" | ")) for name, claim, cells in ROWS] == measured
    assert len(measured) == 12


@pytest.mark.parametrize("part", ["release", "run"])
def test_the_best_bound_is_at_least_four_fifths_of_the_claim_and_none_is_above(part):
    for finding in findings(part):
        bounds = [bound["epsilon"] for bound in finding["bounds"]]
        assert 0.8 * finding["claimed"] < max(bounds) <= finding["claimed"]
