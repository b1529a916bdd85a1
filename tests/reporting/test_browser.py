"""The page in a real browser: what it requests, and that it works by mouse and keyboard, on a phone, dark, printed."""

import math

import pytest

from lightning_gep.reporting.report import html_report
from lightning_gep.reporting.runs import load
from tests.browser import Watched, browser, hover_a_point  # noqa: F401  # a fixture
from tests.synthetic_runs import write_run, write_sweep

pytestmark = pytest.mark.browser

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 375, "height": 700}
ATTACK = "<img src=x onerror=\"document.title='attacked'\"><script>document.title='attacked'</script>"
FIT = "document.documentElement.scrollWidth <= innerWidth"
DARK, WHITE = "rgb(20, 23, 26)", "rgb(255, 255, 255)"


def write_page(directory):
    path = directory / "report.html"
    path.write_text(html_report(load(directory)), "utf-8", newline="\n")
    return path


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Eighteen runs, one of them failed, and one without noise."""
    directory = tmp_path_factory.mktemp("sweep")
    write_sweep(directory, states=["failed"], data="x.MNIST", nonprivate=True)
    write_run(directory / "without-noise", epsilon=math.inf, data="x.MNIST")
    return write_page(directory)


@pytest.fixture
def watched(browser):  # noqa: F811
    """A page whose errors and requests are checked at the end of the test."""
    opened = []

    def start(path, viewport=DESKTOP, **settings):
        opened.append((Watched(browser, viewport=viewport, **settings), path))
        return opened[-1][0].open(path)

    yield start
    for found, path in opened:
        found.close()
        assert found.errors == []
        assert found.requests == [path.resolve().as_uri()]


@pytest.fixture(scope="module")
def opened_once(browser, sweep):  # noqa: F811
    """Opening takes seconds, so tests that leave no trace share one page."""
    found = Watched(browser, viewport=DESKTOP, color_scheme="light")
    found.open(sweep)
    yield found
    found.close()


@pytest.fixture
def opened(opened_once, sweep):
    """The sweep on a desktop, with nothing filtered and nothing sorted."""
    page = opened_once.page
    page.evaluate("document.querySelectorAll('[aria-sort]').forEach(h => h.removeAttribute('aria-sort'))")
    page.locator("#filter-text").fill("")
    for name in ("status", "mechanism"):
        page.locator(f"#filter-{name}").select_option("")
    yield page
    assert opened_once.errors == []
    assert opened_once.requests == [sweep.resolve().as_uri()]


def column(opened, key):
    """The texts of a column, top to bottom, of the runs that are shown."""
    return opened.evaluate(
        """key => {
          const place = [...document.querySelectorAll("#runs-table thead th")].findIndex(h => h.dataset.key === key);
          const shown = [...document.querySelectorAll("#runs-table tbody")].filter(body => !body.hidden);
          return shown.map(body => body.rows[0].cells[place].innerText);
        }""",
        key,
    )


def background(opened):
    return opened.evaluate("getComputedStyle(document.body).backgroundColor")


def first_line_color(opened):
    return opened.evaluate("getComputedStyle(document.querySelector('#plot-learning .scatterlayer .js-line')).stroke")


def test_everything_is_drawn_and_no_button_sends_data_away(opened):
    drawn = opened.evaluate(
        "[...document.querySelectorAll('.drawing')].map(p => p.querySelectorAll('.scatterlayer .trace').length)"
    )
    assert len(drawn) == 7
    assert min(drawn) >= 2
    titles = opened.evaluate("[...new Set([...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title))]")
    assert len(titles) == 4
    assert not any("cloud" in title.lower() or "edit" in title.lower() for title in titles)


def test_sorting_by_mouse(opened):
    header = opened.locator("th[data-key=test]")
    for order, reverse in (("descending", True), ("ascending", False)):
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == order
        *numbers, last = (text.split()[0] for text in column(opened, "test"))
        assert list(map(float, numbers)) == sorted(map(float, numbers), reverse=reverse)
        assert last == "–", "unknown values stay last"
    opened.locator("th[data-key=epsilon] button").click()
    assert column(opened, "epsilon")[0].startswith("∞")
    assert "not private" in column(opened, "epsilon")[0]


def test_filters(opened):
    opened.locator("#filter-text").fill("epsilon=8 SEED=1")
    assert opened.locator("#filter-count").inner_text() == "2 of 19 runs shown"
    opened.locator("#filter-mechanism").select_option("gp")
    assert column(opened, "job") == ["mechanism=gp,privacy.epsilon=8,seed=1"]
    opened.locator("#filter-text").fill("")
    opened.locator("#filter-mechanism").select_option("")
    opened.locator("#filter-status").select_option("failed")
    (failed,) = column(opened, "job")
    assert "out of memory" in failed


def test_the_card_of_a_run_opens_and_moves_with_its_row(opened):
    button = opened.locator("button.job", has_text="mechanism=gp,privacy.epsilon=8,seed=2")
    button.focus()
    opened.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    card = opened.locator(f"#{button.get_attribute('aria-controls')}")
    assert "differentially private" in card.inner_text()
    opened.locator("th[data-key=time] button").click()
    assert card.evaluate("c => c.closest('tbody').rows[0].cells[0].innerText").endswith("seed=2")
    button.click()
    assert card.count() == 0


def test_hovering_shows_numbers_and_the_legend_hides_series(opened):
    label = hover_a_point(opened, "#plot-accuracy-epsilon")
    assert "GEP" in label
    assert "±" in label
    names = opened.locator("#plot-accuracy-epsilon .legendtext")
    assert names.count() == 3
    visible = "document.getElementById('plot-accuracy-epsilon').data.map(trace => trace.visible !== 'legendonly')"
    names.first.locator("xpath=..").locator(".legendtoggle").click()
    opened.wait_for_timeout(500)  # plotly waits for a double click
    assert opened.evaluate(visible)[0] is False
    names.first.locator("xpath=..").locator(".legendtoggle").click()
    opened.wait_for_timeout(500)
    assert all(opened.evaluate(visible))


def test_a_dark_page_prints_light_and_the_keyboard_can_skip_the_navigation(watched, sweep):
    opened = watched(sweep, color_scheme="dark")
    assert background(opened) == DARK
    dark = first_line_color(opened)
    opened.keyboard.press("Tab")
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "main"
    opened.emulate_media(media="print")
    opened.locator("details[data-print][open]").wait_for()
    assert background(opened) == WHITE
    assert first_line_color(opened) != dark
    assert not opened.locator(".filters").is_visible()
    assert opened.locator("details[data-print] .privacy-card").is_visible()
    opened.emulate_media(media="screen")
    opened.locator("details[data-print]:not([open])").wait_for(state="attached")
    assert first_line_color(opened) == dark


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_wider_than_the_page(watched, sweep, viewport):
    touch = viewport is PHONE
    opened = watched(sweep, viewport=viewport, has_touch=touch, is_mobile=touch)
    assert opened.evaluate(FIT)
    opened.locator("button.job").nth(3).click()
    for summary in opened.locator("summary").all():
        summary.click()
    assert opened.evaluate(FIT)
    widths = "[...document.querySelectorAll('.drawing .main-svg')].map(s => s.getBoundingClientRect().right)"
    assert max(opened.evaluate(widths)) <= viewport["width"]
    # A finger scrolls the page and does not zoom plots.
    dragging = opened.evaluate("document.getElementById('plot-learning')._fullLayout.dragmode")
    assert dragging == (False if touch else "zoom")


def test_text_from_disk_does_nothing(watched, tmp_path):
    write_sweep(tmp_path, seeds=(0,), name=ATTACK)
    write_run(tmp_path / "bad", job=ATTACK, error=ATTACK, overrides=[f"{ATTACK}=1"], epsilon=2.0)
    opened = watched(write_page(tmp_path))
    opened.locator("button.job", has_text="img").click()
    assert "attacked" not in opened.evaluate("document.title.slice(0, 8)")
    assert opened.evaluate("document.querySelectorAll('img').length") == 0
    assert opened.locator(".lead h1").inner_text() == ATTACK
