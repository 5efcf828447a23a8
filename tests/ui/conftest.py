"""A browser for the tests of the page, and the pages that it opens."""

from __future__ import annotations

import pytest

from acker.ui import LivePage
from acker.ui.server import LiveServer
from tests.ui.fakes import FakeSource

# `make test` looks at one, `make test-slow` at the others.
LOOKS = pytest.mark.parametrize(
    ("width", "scheme"),
    [
        pytest.param(1280, "light", id="wide-light"),
        pytest.param(375, "dark", id="narrow-dark", marks=pytest.mark.slow),
        pytest.param(1280, "dark", id="wide-dark", marks=pytest.mark.slow),
        pytest.param(375, "light", id="narrow-light", marks=pytest.mark.slow),
    ],
)


def is_data(url: str) -> bool:
    """Whether a URL holds what it names, so that nobody is asked for it."""
    return url.startswith("data:")


@pytest.fixture(scope="module")
def browser(chromium):
    """The browser, over the DevTools protocol. Not for other modules: its driver has an event loop on this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.connect_over_cdp(chromium.url)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Open a URL in a profile of its own; at the end nothing may have been logged or asked of another host."""
    opened, contexts = [], []

    def open_page(url, *, width=1280, allowed=(), **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.logged, page.hosts, page.weights = [], set(), {}
        page.on("console", lambda message: page.logged.append(message.text))
        page.on("pageerror", lambda error: page.logged.append(str(error)))
        page.on("request", lambda request: None if is_data(request.url) else page.hosts.add(request.url.split("/")[2]))
        page.goto(url)
        opened.append((page, url.split("/")[2], allowed))
        return page

    yield open_page
    told = [
        (page.hosts, host, [text for text in page.logged if not any(part in text for part in allowed)])
        for page, host, allowed in opened
    ]
    for context in contexts:
        context.close()
    for hosts, host, logged in told:
        assert hosts == {host}, "it asks other hosts"
        assert logged == []


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def serve():
    """Serve a source until the end of the test."""
    servers = []

    def start(source, port=0):
        servers.append(LiveServer(source, LivePage(port=port, interval_secs=0.5)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def server(serve, source):
    return serve(source)
