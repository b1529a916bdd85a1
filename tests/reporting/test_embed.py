import base64
import hashlib
import json
import re

import pytest

from lightning_gep.reporting.embed import Scripts, json_script, resource


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--<script>", "a & b", "\u2028\u2029", '"\\'])
def test_data_cannot_end_its_element_and_reads_back(text):
    element = json_script("x", {text: [text]})
    assert element.startswith('<script type="application/json" id="x">')
    body = element.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert not set("<>&\u2028\u2029") & set(body)
    assert json.loads(body) == {text: [text]}


def test_undefined_numbers_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        json_script("x", float("nan"))


def test_the_policy_allows_the_scripts_of_the_page_and_no_other():
    scripts = Scripts()
    element = scripts.inline("const x = '</script>';\r\n")
    body = element.removeprefix("<script>").removesuffix("</script>")
    assert "</script" not in body
    assert "\r" not in body
    digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in scripts.policy
    assert "default-src 'none'" in scripts.policy
    assert not re.search(r"https?:|\*|script-src[^;]*unsafe", scripts.policy)


def test_plotly_is_embedded_whole():
    element = Scripts().plotly()
    assert len(element) > 1_000_000
    assert element.count("</script") == 1


@pytest.mark.parametrize("name", ["page.html", "report.css", "report.js", "theme.js"])
def test_the_packages_files_ask_for_nothing_from_elsewhere(name):
    assert not re.search(r"https?://|@import|url\(", resource(name))
