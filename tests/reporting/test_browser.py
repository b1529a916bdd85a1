"""The page in a real browser: what it asks for, and that it works by mouse and keyboard, on a phone, dark, printed."""

import math

import pytest

from lightning_gep.reporting.report import html_report as page
from lightning_gep.reporting.runs import load
from tests.browser import Watched, browser, hover_a_point  # noqa: F401  # a fixture
from tests.synthetic_runs import write_run, write_sweep

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 375, "height": 700}
ATTACK = "<img src=x onerror=\"document.title='attacked'\"><script>document.title='attacked'</script>"
FIT = "document.documentElement.scrollWidth <= innerWidth"


def write_page(directory):
    path = directory / "report.html"
    path.write_text(page(load(directory)), "utf-8", newline="\n")
    return path


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Eighteen runs, one of them failed, and one without noise."""
    directory = tmp_path_factory.mktemp("sweep")
    write_sweep(directory, states=["failed"], data="x.MNIST", nonprivate=True)
    write_run(directory / "without-noise", epsilon=math.inf, data="x.MNIST")
    return write_page(directory)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """More than three hundred runs."""
    directory = tmp_path_factory.mktemp("large")
    several = {"mechanisms": ("gep", "bgep", "gp"), "ks": (50, 100, 200), "epsilons": (1.0, 2.0, 4.0, 8.0)}
    assert len(write_sweep(directory, **several, seeds=range(11), nonprivate=True)) == 308
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
    """Opening takes seconds on a busy machine: tests that leave no trace share one page."""
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


def first_line_colour(opened):
    return opened.evaluate("getComputedStyle(document.querySelector('#plot-learning .scatterlayer .js-line')).stroke")


def test_everything_is_drawn(opened):
    drawn = opened.evaluate(
        "[...document.querySelectorAll('.drawing')].map(p => p.querySelectorAll('.scatterlayer .trace').length)"
    )
    assert len(drawn) == 9
    assert min(drawn) >= 2


def test_sorting_by_mouse(opened):
    header = opened.locator("th[data-key=test]")
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    found = column(opened, "test")
    numbers = [float(text.split()[0]) for text in found if text != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert found[-1] == "–"
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    numbers = [float(text.split()[0]) for text in column(opened, "test")[:-1]]
    assert numbers == sorted(numbers)
    assert column(opened, "test")[-1] == "–", "what is not known stays last"


def test_infinite_epsilon_sorts_as_the_largest(opened):
    opened.locator("th[data-key=epsilon] button").click()
    assert column(opened, "epsilon")[0].startswith("∞")
    assert "not private" in column(opened, "epsilon")[0]


def test_sorting_by_keyboard(opened):
    opened.locator("#filter-mechanism").focus()
    reached = []
    for _ in range(4):
        opened.keyboard.press("Tab")
        reached.append(opened.evaluate("document.activeElement.closest('th')?.dataset.key ?? ''"))
    assert reached[-3:] == ["job", "status", "mechanism"]
    width = opened.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert width == "3px", "the focus must be seen"
    opened.keyboard.press("Enter")
    assert opened.locator("th[data-key=mechanism]").get_attribute("aria-sort") == "ascending"
    assert column(opened, "mechanism") == ["GEP"] * 10 + ["GP"] * 9


def test_the_first_stop_of_the_keyboard_skips_to_the_report(watched, sweep):
    opened = watched(sweep)
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "main"


def test_filters(opened):
    opened.locator("#filter-text").fill("epsilon=8 SEED=1")
    assert len(column(opened, "job")) == 2
    assert opened.locator("#filter-count").inner_text() == "2 of 19 runs shown"
    opened.locator("#filter-mechanism").select_option("gp")
    assert column(opened, "job") == ["mechanism=gp,privacy.epsilon=8,seed=1"]
    opened.locator("#filter-text").fill("")
    opened.locator("#filter-mechanism").select_option("")
    opened.locator("#filter-status").select_option("failed")
    assert len(column(opened, "job")) == 1
    assert "out of memory" in column(opened, "job")[0]


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


def test_hovering_a_point_tells_its_numbers(opened):
    label = hover_a_point(opened, "#plot-accuracy-epsilon")
    assert "GEP" in label
    assert "±" in label


def test_the_legend_switches_series_off_and_on(opened):
    button = opened.locator("figure[data-plot=accuracy-epsilon] .legend button").first
    visible = (
        "document.getElementById('plot-accuracy-epsilon').data.filter(t => t.legendgroup === 's0' && t.visible).length"
    )
    assert opened.evaluate(visible) > 0
    button.focus()
    opened.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    assert opened.evaluate(visible) == 0
    button.click()
    assert opened.evaluate(visible) > 0


def test_the_theme_changes_page_and_plots_and_is_remembered(opened):
    before = background(opened), first_line_colour(opened)
    opened.locator("#theme").click()
    after = background(opened), first_line_colour(opened)
    assert before[0] == "rgb(251, 251, 250)"
    assert after[0] == "rgb(20, 23, 26)"
    assert after[1] != before[1]
    assert opened.evaluate("localStorage.getItem('gep-report-theme')") == "dark"
    opened.locator("#theme").click()
    assert (background(opened), first_line_colour(opened)) == before


def test_the_systems_theme_counts_at_first(watched, sweep):
    opened = watched(sweep, color_scheme="dark")
    assert background(opened) == "rgb(20, 23, 26)"
    opened.emulate_media(color_scheme="light")
    assert background(opened) == "rgb(251, 251, 250)"


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_wider_than_the_page(watched, sweep, tmp_path, viewport):
    opened = watched(sweep, viewport=viewport)
    assert opened.evaluate(FIT)
    opened.locator("button.job").nth(3).click()
    for summary in opened.locator("summary").all():
        summary.click()
    assert opened.evaluate(FIT)
    widths = opened.evaluate(
        "[...document.querySelectorAll('.drawing .main-svg')].map(s => s.getBoundingClientRect().right)"
    )
    assert max(widths) <= viewport["width"]
    opened.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_a_finger_scrolls_the_page_and_does_not_zoom_plots(watched, sweep):
    opened = watched(sweep, viewport=PHONE, has_touch=True, is_mobile=True)
    assert opened.evaluate("document.getElementById('plot-learning')._fullLayout.dragmode") is False


def test_no_button_sends_data_away(opened):
    titles = opened.evaluate("[...new Set([...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title))]")
    assert len(titles) == 4
    assert not any("cloud" in title.lower() or "edit" in title.lower() for title in titles)


def test_printing_a_dark_page_is_light(watched, sweep, tmp_path):
    opened = watched(sweep, color_scheme="dark")
    dark = first_line_colour(opened)
    opened.emulate_media(media="print")
    opened.locator("details[data-print][open]").wait_for()
    assert background(opened) == "rgb(255, 255, 255)"
    assert first_line_colour(opened) != dark
    assert not opened.locator("#theme").is_visible()
    assert not opened.locator(".filters").is_visible()
    assert opened.locator("details[data-print] .card-body").is_visible()
    opened.emulate_media(media="screen")
    opened.locator("details[data-print]:not([open])").wait_for(state="attached")
    assert first_line_colour(opened) == dark


def test_text_from_disk_does_nothing(watched, tmp_path):
    write_sweep(tmp_path, seeds=(0,), name=ATTACK)
    write_run(tmp_path / "bad", job=ATTACK, error=ATTACK, overrides=[f"{ATTACK}=1"], epsilon=2.0)
    opened = watched(write_page(tmp_path))
    opened.locator("button.job", has_text="img").click()
    assert "attacked" not in opened.evaluate("document.title.slice(0, 8)")
    assert opened.evaluate("document.querySelectorAll('img').length") == 0
    assert opened.locator("h1").inner_text() == ATTACK


def test_one_run(watched, tmp_path):
    write_run(tmp_path / "one")
    opened = watched(write_page(tmp_path / "one"))
    assert opened.locator(".drawing .main-svg").count() > 0
    assert opened.locator("#privacy .statement").is_visible()


def test_three_hundred_runs_are_small_and_open_quickly(browser, large):  # noqa: F811
    """Under 3 s on the clock until the plots in view are drawn. On a busy machine an attempt may be slow; not all are.

    On two idle cores it took 2.1 s, and 2.9 s until all plots were drawn.
    """
    assert large.stat().st_size < 10e6
    seconds = []
    while len(seconds) < 8 and min(seconds, default=9) >= 3:
        found = Watched(browser, viewport=DESKTOP)
        opened = found.open(large)
        entry = opened.evaluate("performance.getEntriesByName('plots in view drawn')[0].startTime / 1000")
        seconds.append(entry)
        assert found.errors == []
        found.close()
    assert min(seconds) < 3, seconds
