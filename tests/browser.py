"""A browser for tests: the Chromium of the machine, driven by Playwright.

Without one the tests that need it are skipped, unless LIGHTNING_GEP_REQUIRE_BROWSER=1 says that they must run.
"""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium():
    """The path of a browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def give_up(reason):
    """Skip, or fail where a browser is required."""
    if os.environ.get("LIGHTNING_GEP_REQUIRE_BROWSER") == "1":
        pytest.fail(f"{reason}, and LIGHTNING_GEP_REQUIRE_BROWSER=1 requires one", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser():
    """A running browser, shared by the tests of a module."""
    path = find_chromium()
    if path is None:
        give_up(f"there is no browser: none of {', '.join(NAMES)} is on PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        give_up("playwright is not installed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


class Watched:
    """A page that remembers what went wrong on it and what it asked for."""

    def __init__(self, browser, **settings):
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.errors, self.requests = [], []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", lambda request: self.errors.append(f"failed: {request.url}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path):
        """Load a report from disk and wait until its plots are drawn."""
        self.page.goto(path.resolve().as_uri())
        # A selector, not a function: the page's own policy forbids evaluating strings.
        self.page.wait_for_selector("html[data-plots=drawn]", state="attached", timeout=120_000)
        return self.page

    def close(self):
        """Forget the page."""
        self.context.close()


def hover_a_point(page, selector):
    """Point the mouse at the first of the means; returns the label that appears."""
    plot = page.locator(selector)
    plot.scroll_into_view_if_needed()
    place = plot.evaluate(
        """plot => {
          const { x, y } = plot.data.find(trace => trace.error_y);
          const box = plot.getBoundingClientRect(), { xaxis, yaxis, _size: size } = plot._fullLayout;
          return [box.x + size.l + xaxis.d2p(x[0]), box.y + size.t + yaxis.d2p(y[0])];
        }"""
    )
    page.mouse.move(*place)
    label = plot.locator(".hoverlayer .hovertext").first
    label.wait_for()
    return label.text_content()
