"""One app and one browser for all tests of the page; a fresh cache, so that cold is cold."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.page.driver import GeneratePage
from tests.page.server import CHROMIUM_ARGUMENTS, Server, chromium_path, make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    app = Server(tmp_path_factory.mktemp("page"), "--device", "tpu-emulated", "--model", str(tiny_model))
    try:
        app.wait_until_ready()
        yield app
    finally:
        app.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(CHROMIUM_ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser of its own: no storage in common with another test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    context.set_default_timeout(20_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, server: Server) -> GeneratePage:
    return open_page(context, server)


def open_page(context: BrowserContext, server: Server) -> GeneratePage:
    tab: Page = context.new_page()
    opened = GeneratePage(tab)
    tab.goto(server.url)
    opened.wait_for_verdict()
    return opened
