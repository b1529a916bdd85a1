"""A real sweep, from training to its report in a real browser."""

import subprocess
import sys

from tests.browser import Watched, browser, hover_a_point  # noqa: F401  # a fixture

FOUR_JOBS = ("privacy.epsilon=4,8", "seed=0,1", "trainer.max_epochs=1", "mechanism.k=20", "privacy.accountant=rdp")
FIT = "document.documentElement.scrollWidth <= innerWidth"


def run(module, *arguments, cwd):
    command = [sys.executable, "-m", f"lightning_gep.cli.{module}", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_the_report_of_a_sweep_that_was_really_trained(tmp_path, browser):  # noqa: F811
    run("train", "-m", *FOUR_JOBS, "sweep=it", "privacy.log_nonprivate=true", cwd=tmp_path)
    run("report", "sweeps/it", cwd=tmp_path)
    path = tmp_path / "sweeps" / "it" / "report.html"
    for name, width in (("desktop", 1280), ("phone", 375)):
        watched = Watched(browser, viewport={"width": width, "height": 900})
        page = watched.open(path)
        assert page.locator("#runs-table tbody:not([hidden])").count() == 4
        page.locator("th[data-key=epsilon] button").click()
        assert page.locator("th[data-key=epsilon]").get_attribute("aria-sort") == "descending"
        first = page.locator("#runs-table tbody:not([hidden])").first.inner_text()
        assert "privacy.epsilon=8" in first.replace("\u200b", "").replace("\n", "")
        page.locator("#filter-text").fill("seed=1")
        assert page.locator("#runs-table tbody:not([hidden])").count() == 2
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
        assert "±" in hover_a_point(page, "#plot-accuracy-epsilon")
        assert page.evaluate(FIT)
        assert page.get_by_text("not private", exact=True).count() > 0, "what was logged as nonprivate/… is marked"
        picture = tmp_path / f"{name}.png"
        page.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 50_000
        assert watched.errors == []
        assert watched.requests == [path.resolve().as_uri()]
        watched.close()
