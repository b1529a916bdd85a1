"""The report as a page."""

import base64
import hashlib
import json
import math
import re
import sys

import pytest

from lightning_gep.errors import ConfigurationError
from lightning_gep.reporting.report import html_report, policy, script, source
from lightning_gep.reporting.runs import load
from tests.outline import Outline
from tests.synthetic_runs import write_run, write_sweep

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweep")
    write_sweep(directory, nonprivate=True)
    return load(directory)


def test_text_from_disk_is_text(tmp_path):
    """Markup wherever a text can come from disk."""
    write_sweep(tmp_path, seeds=(0,), name=ATTACK, nonprivate=True)
    directory = write_run(tmp_path / "bad", job=ATTACK, status="failed", error=ATTACK, overrides=[f"{ATTACK}=1"])
    record = json.loads((directory / "run.json").read_text())
    record["config"]["data"]["_target_"] = record["config"]["mechanism"]["mechanism"] = ATTACK
    (directory / "run.json").write_text(json.dumps({**record, "status": f"finished {ATTACK}"}))
    (tmp_path / "x<script>alert(1)<").mkdir()
    (tmp_path / "x<script>alert(1)<" / "run.json").write_text("{")
    card = {"guarantee": {"statement": ATTACK}, ATTACK: {ATTACK: ATTACK}, "not_covered": [ATTACK]}
    for path in (tmp_path / "privacy_card.json", directory / "checkpoints" / "privacy_card.json"):
        path.write_text(json.dumps(card))
    text = html_report(load(tmp_path))
    found = Outline(text)
    assert len(found.ids) == len(set(found.ids))
    assert "img" not in found.tags
    assert "onerror" not in found.attributes
    assert text.count("<script") == 3, "two scripts and the data"
    assert "<img src=x onerror=alert(1)>" in found.text, "it can be read"


def test_one_run_shows_its_own_card(tmp_path):
    write_run(tmp_path / "one")
    text = Outline(html_report(load(tmp_path / "one"))).text
    assert "(ε = 7.999, δ = 0.0001)-differentially private for one training record" in text
    assert "Choosing it cost privacy" not in text


def test_a_damaged_card_is_shown_by_its_statement(tmp_path):
    write_run(tmp_path / "one")
    card = {"guarantee": {"statement": "It is private."}, "status": 3}
    (tmp_path / "one" / "checkpoints" / "privacy_card.json").write_text(json.dumps(card))
    assert "incomplete and cannot be shown. It is private." in html_report(load(tmp_path / "one"))


def test_a_sweep_shows_its_card_and_marks_the_best(sweep):
    text = html_report(sweep)
    assert text.count("best by validation</span>") == 1
    assert "All 18 models together" in text
    assert "Choosing it cost privacy" in text
    assert len(re.findall("<template", text)) == 18
    plots = re.findall(r'<div id="plot-[a-z-]+" class="drawing" role="group" aria-label="[^"]{20,}"', text)
    assert len(plots) == text.count("<summary>Data of this plot</summary>") == 7


def test_three_hundred_runs_make_a_small_page(tmp_path):
    several = {"mechanisms": ("gep", "bgep", "gp"), "ks": (50, 100, 200), "epsilons": (1.0, 2.0, 4.0, 8.0)}
    assert len(write_sweep(tmp_path, **several, seeds=range(11), nonprivate=True)) == 308
    text = html_report(load(tmp_path))
    assert len(text) < 10e6
    assert text.count("<tbody data-search") == 308


def test_what_is_not_private_is_marked(tmp_path):
    write_run(tmp_path / "infinite", epsilon=math.inf, nonprivate=True)
    write_run(tmp_path / "seeded", private=False)
    text = html_report(load(tmp_path))
    assert "Not private: 1 run without noise (ε = ∞) and 1 run whose sampling" in text
    assert text.count('<br><span class="mark warn">not private</span>') == 2


def test_nonprivate_values_are_shown_only_as_such(tmp_path):
    write_run(tmp_path / "one", nonprivate=True)
    path = tmp_path / "one" / "metrics" / "metrics.csv"
    path.write_text(path.read_text().replace("nonprivate/gradient_norm", "nonprivate/unheard_of"))
    text = re.sub(r"<script>.*?</script>", "", html_report(load(tmp_path)), flags=re.DOTALL)
    assert "unheard" not in text
    before, inside = text.split('<section id="nonprivate" class="hatched">')
    assert "Projection error" not in before
    assert inside.split("</section>")[0].count("not private</span>") == 1 + 3


def test_the_policy_allows_the_scripts_of_the_page_and_no_other():
    text = script("const x = '</script>';\r\n")
    assert "</script" not in text
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in policy([text])
    assert not re.search(r"https?:|\*|script-src[^;]*unsafe", policy([text]))
    for name in ("report.html", "page.css", "page.js"):
        assert not re.search(r"https?://|@import|url\(", source(name)), name


def test_without_plotly_the_page_names_the_extra(sweep, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'lightning-gep\[report\]'"):
        html_report(sweep)
