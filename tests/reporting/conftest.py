"""A real browser, for tests of pages."""

import os
import shutil

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "expected Chromium on the PATH, or its path in CHROMIUM"
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def new_page(browser):
    """Opens pages in contexts of their own; what one asks of the network stands in its `asked`."""
    contexts = []

    def open_(uri, width=1280, scheme="light", script=True, context=None):
        if context is None:
            size = {"width": width, "height": 900 if width > 600 else 844}
            context = browser.new_context(
                viewport=size, color_scheme=scheme, java_script_enabled=script
            )
            contexts.append(context)
        page = context.new_page()
        page.asked, page.failed = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.failed.append(str(error)))
        page.goto(uri)
        return page

    yield open_
    for context in contexts:
        context.close()
