import base64
import hashlib
import re

import pytest

from lightning_gep.reporting.pages import plotly, policy, script, source


def test_the_policy_allows_the_scripts_of_the_page_and_no_other():
    text = script("const x = '</script>';\r\n")
    assert "</script" not in text
    assert "\r" not in text
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    found = policy([text])
    assert f"script-src 'sha256-{digest}';" in found
    assert "default-src 'none'" in found
    assert not re.search(r"https?:|\*|script-src[^;]*unsafe", found)


def test_plotly_is_embedded_whole():
    assert len(plotly()) > 1_000_000
    assert "</script" not in script(plotly())


@pytest.mark.parametrize("name", ["base.html", "parts.html", "report.html", "page.css", "page.js", "theme.js"])
def test_the_templates_load_nothing_from_elsewhere(name):
    assert not re.search(r"https?://|@import|url\(", source(name))
