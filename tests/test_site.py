"""The documentation site builds without a warning, needs nothing from the web, and misses no name and no message."""

import html
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import lightning_gep
from lightning_gep import ConfigurationError, GEPStrategy, PinkNoise, calibrate
from tests.browser import browser  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. --strict fails for links and anchors that lead nowhere and for names that do not exist."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def words(page):
    """The text of a page as a reader sees it."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page.read_text())).split())


def test_nothing_is_loaded_from_the_web(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?([^\">\s]+)", page.read_text())
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text()), style.name


def test_every_page_of_docs_is_in_the_navigation(site):
    home = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html"' in home, f"{page.name} is not in mkdocs.yml"


@pytest.mark.parametrize("name", lightning_gep.__all__)
def test_every_public_name_is_in_the_reference(site, name):
    assert f'id="lightning_gep.{name}"' in (site / "api.html").read_text()


def test_the_reference_shows_defaults_and_choices_by_value(site):
    text = words(site / "api.html")
    assert "mechanism (Literal['gep', 'bgep', 'gp', 'spectral'], default: 'gep' )" in text
    assert "default: PrivacySettings" not in text


@cache
def messages():
    """What docs/messages.py reads from the source, by section."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from messages import messages
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return messages(ROOT / "lightning_gep")


def test_every_error_message_is_on_the_page_of_errors(site):
    text, found = words(site / "errors.html"), messages()
    assert sum(map(len, found.values())) > 100
    for section, texts in found.items():
        for message in texts:
            assert " ".join(message.split()) in text, f"{section}: {message}"


RAISED = {
    "neither target": lambda: GEPStrategy(),
    "unknown mechanism": lambda: GEPStrategy(epsilon=1.0, mechanism="sgd"),
    "k": lambda: GEPStrategy(epsilon=1.0, k=0),
    "split": lambda: GEPStrategy(epsilon=1.0, split="half"),
    "ghost": lambda: GEPStrategy(epsilon=1.0, gradients="ghost"),
    "decay": lambda: GEPStrategy(epsilon=1.0, decay=1.5),
    "delta": lambda: calibrate(epsilon=1.0, delta=2.0, sample_rate=0.1, steps=10, mechanism="gp"),
    "out of reach": lambda: calibrate(epsilon=1e-9, delta=1e-9, sample_rate=1.0, steps=10**6, mechanism="gp"),
    "shape": lambda: PinkNoise((0, 3)),
}


@pytest.mark.parametrize("case", RAISED)
def test_a_message_as_it_is_raised_is_one_of_those_on_the_page(case):
    """The page is read from the source; this is what a user sees."""
    with pytest.raises(ConfigurationError) as raised:
        RAISED[case]()
    patterns = (re.escape(text).replace("…", "(.+)") for texts in messages().values() for text in texts)
    assert any(re.fullmatch(pattern, str(raised.value), re.DOTALL) for pattern in patterns), raised.value


def test_the_causes_are_those_of_messages_there_are():
    rows = re.findall(r"^\| (?!message begins|exception|---|`)([^|]+?) \|", (ROOT / "docs/errors.md").read_text(), re.M)
    assert len(rows) > 20
    every = [text for texts in messages().values() for text in texts]
    for begins in rows:
        assert any(text.startswith(begins) for text in every), f"no message begins with {begins!r}"


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_screen(site, browser, width):  # noqa: F811
    page = browser.new_page(viewport={"width": width, "height": 900})
    for name in ("index", "quickstart", "how_it_works", "choosing", "errors", "api", "scaling", "notebooks/text"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
    page.close()
