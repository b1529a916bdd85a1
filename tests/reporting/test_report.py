import json
import math
import re
from html.parser import HTMLParser

import pytest

from lightning_gep.reporting.pages import source as resource
from lightning_gep.reporting.report import html_report as page
from lightning_gep.reporting.runs import load
from tests.synthetic_runs import write_run, write_sweep

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'"


VOID = {"meta", "br", "wbr", "input", "img", "link"}


class Outline(HTMLParser):
    """Counts elements and attributes, checks that what opens also closes, and that ids are unique."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.ids, self.text = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.text.append(data)


def outline(text):
    # plotly.js is long and is not what is looked at here.
    return Outline(re.sub(r"<script>.*?</script>", "<script></script>", text, flags=re.DOTALL))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A sweep with markup wherever a text can come from disk."""
    root = tmp_path_factory.mktemp("hostile")
    write_sweep(root, seeds=(0,), name=ATTACK, nonprivate=True)
    directory = write_run(
        root / "bad", mechanism="gep", job=ATTACK, status="failed", error=ATTACK, overrides=[f"{ATTACK}=1"]
    )
    record = json.loads((directory / "run.json").read_text())
    record["config"]["data"]["_target_"] = record["config"]["mechanism"]["mechanism"] = ATTACK
    (directory / "run.json").write_text(json.dumps({**record, "status": f"finished {ATTACK}"}))
    (root / "x<script>alert(1)<").mkdir()
    (root / "x<script>alert(1)<" / "run.json").write_text("{")
    card = {"guarantee": {"statement": ATTACK}, ATTACK: {ATTACK: ATTACK}, "not_covered": [ATTACK]}
    (root / "privacy_card.json").write_text(json.dumps(card))
    (directory / "checkpoints" / "privacy_card.json").write_text(json.dumps(card))
    return page(load(root))


def test_text_from_disk_is_text(hostile):
    found = outline(hostile)
    assert "img" not in found.tags
    assert "onerror" not in found.attributes
    assert hostile.count("<script") == 4, "three scripts and the data"
    assert "<script>alert" not in hostile
    assert "<img src=x onerror=alert(1)>" in "".join(found.text), "it is there to be read"


def test_the_page_is_well_formed(tmp_path, hostile):
    write_sweep(tmp_path, nonprivate=True, states=["waiting", "failed"])
    for text in (hostile, page(load(tmp_path))):
        found = outline(text)
        assert found.open == []
        assert len(found.ids) == len(set(found.ids))


def test_one_run_shows_its_own_card(tmp_path):
    write_run(tmp_path / "one")
    text = "".join(outline(page(load(tmp_path / "one"))).text)
    assert "differentially private for adding or removing one training record" in text
    assert "Choosing it cost privacy" not in text
    assert "filter-text" not in text


def test_a_sweep_shows_its_card_and_marks_the_best(tmp_path):
    write_sweep(tmp_path)
    text = page(load(tmp_path))
    assert text.count("best by validation</span>") == 1
    assert "All 18 models together" in text
    assert "Choosing it cost privacy" in text
    assert len(re.findall("<template", text)) == 18


def test_a_sweep_still_running_says_how_far_it_is(tmp_path):
    write_sweep(tmp_path, states=["waiting", "waiting", "failed"])
    text = page(load(tmp_path))
    assert "15 of 18 finished, 2 waiting, 1 failed" in text
    assert "RuntimeError: out of memory" in text
    assert "basic composition" in text


def test_what_is_not_private_is_marked(tmp_path):
    write_run(tmp_path / "infinite", epsilon=math.inf, nonprivate=True)
    write_run(tmp_path / "seeded", private=False)
    text = page(load(tmp_path))
    assert "Not private: 1 run without noise (ε = ∞) and 1 run whose sampling" in text
    assert 'class="hatched"' in text
    assert text.count('<br><span class="mark warn">not private</span>') == 2


def test_nonprivate_values_are_shown_only_as_such(tmp_path):
    write_run(tmp_path / "one", nonprivate=True)
    path = tmp_path / "one" / "metrics" / "metrics.csv"
    path.write_text(path.read_text().replace("nonprivate/gradient_norm", "nonprivate/unheard_of"))
    text = re.sub(r"<script>.*?</script>", "", page(load(tmp_path)), flags=re.DOTALL)
    assert "unheard" not in text
    before, inside = text.split('<section id="nonprivate" class="hatched">')
    assert "Projection error" not in before
    assert inside.split("</section>")[0].count("not private</span>") == 1 + 3


def test_every_plot_has_a_name_a_summary_and_its_numbers(tmp_path):
    write_sweep(tmp_path, nonprivate=True)
    text = page(load(tmp_path))
    plots = re.findall(r'<div id="plot-[a-z-]+" class="drawing" role="group" aria-label="[^"]{20,}"', text)
    assert len(plots) == 9
    assert text.count("<summary>Data of this plot</summary>") == 9


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_colours_have_enough_contrast(theme):
    blocks = re.findall(r"\{([^{}]*--page:[^{}]*)\}", resource("page.css"))
    assert blocks[1].split() == blocks[2].split(), "dark by the system and dark by the button"
    found = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", blocks[{"light": 0, "dark": 1, "print": 3}[theme]]))
    colour = {name: luminance(value) for name, value in found.items()}
    for name in ("text", "quiet", "link"):
        assert contrast(colour[name], colour["page"]) >= 4.5, name
        assert contrast(colour[name], colour["panel"]) >= 4.5, name
    for name in ("warn", "good"):
        assert contrast(colour[name], colour[f"{name}-back"]) >= 4.5, name
    for name in ("muted", *(f"series-{number}" for number in range(1, 7))):
        assert contrast(colour[name], colour["panel"]) >= 3, name


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
