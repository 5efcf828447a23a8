"""Flame graphs on the page in a real browser: what is sampled is a real topology, or a real consumer."""

from __future__ import annotations

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from acker.connectors import Consumer
from acker.local import LocalRuntime
from acker.local.page.report_view import report_view
from acker.testing.connectors import MemoryBroker, MemorySource
from acker.topology import Bolt, ReliableSpout, Topology
from acker.ui import LivePage, flames
from acker.ui.frozen import freeze

PAGE = LivePage(port=0, interval_secs=0.1)
SEARCH = re.compile(r"^search_the_catalogue \(test_browser_flames\.py\): \d+ samples of \d+$")


class Work:
    """A function that takes all the time, from its begin until the test is over."""

    begun = threading.Event()
    over = threading.Event()


def search_the_catalogue() -> None:
    Work.begun.set()
    while not Work.over.wait(0.001):
        pass


class Orders(ReliableSpout):
    outputs = ["order"]
    emitted = False

    def next_tuple(self):
        if not self.emitted:
            self.emitted = True
            self.emit([1], tup_id=1)


class Price(Bolt):
    def process(self, tup):
        search_the_catalogue()


class Shop(Topology):
    orders = Orders.spec()
    price = Price.spec(inputs=[orders])


@contextlib.contextmanager
def shop():
    """The running topology, once its bolt takes all the time: samples from before would show its wait for a tuple."""
    with LocalRuntime(Shop, {"topology.drain.secs": 0}, ui=PAGE) as runtime:
        try:
            assert Work.begun.wait(60), "the bolt got no tuple"
            yield runtime
        finally:
            Work.over.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(flames, "SECS", 0.3)
    Work.begun.clear()
    Work.over.clear()
    yield
    Work.over.set()


def sampled(page):
    """Ask for a flame graph of the bolt; return its frame of the function that takes the time."""
    page.locator("#components").get_by_role("button", name="Flame graph of price").click()
    frame = page.locator("#flames").get_by_role("button", name=SEARCH)
    expect(frame).to_be_visible()
    return frame


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        pytest.param(1280, "light", id="wide-light"),
        pytest.param(375, "dark", id="narrow-dark"),
    ],
)
def test_a_flame_graph_names_the_function_that_takes_the_time(visit, width, scheme) -> None:
    with shop() as runtime:
        page = visit(runtime.page.url_with_token, width=width, color_scheme=scheme)
        frame = sampled(page)
        expect(page.locator("#flames h3")).to_have_text(re.compile(r"^price: \d+ samples in 0\.3 s, until "))
        expect(page.locator("#flames .told")).to_have_text(
            re.compile("code: test_browser_flames.py:.* in search_the_catalogue: ")
        )
        expect(page.locator("#flames-h")).to_be_focused()
        whole = page.locator("#flames-list").bounding_box()
        assert whole["x"] + whole["width"] <= width
        # The library lets a new frame grow to its width for a quarter of a second.
        rect = frame.locator("rect").element_handle()
        page.wait_for_function("([rect, half]) => rect.getBBox().width > half", arg=[rect, whole["width"] / 2])
        found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "best-practice"]})
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.slow
def test_keys_reach_each_frame_and_enter_shows_it_in_full_width(visit) -> None:
    with shop() as runtime:
        page = visit(runtime.page.url_with_token)
        frame = sampled(page)
        page.keyboard.press("Tab")
        frames = page.locator("#flames g.frame")
        expect(frames.first).to_be_focused()
        page.keyboard.press("ArrowDown")
        expect(frames.nth(1)).to_be_focused()
        page.keyboard.press("Enter")
        expect(frames.nth(1)).to_be_focused()
        expect(frames.first).to_have_class("frame fade")
        assert frame.get_attribute("aria-hidden") == "false"


def test_a_frozen_page_has_what_was_sampled(visit, tmp_path) -> None:
    def opened(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return visit(path.as_uri())

    with shop() as runtime:
        sampled(visit(runtime.page.url_with_token))
    last, history = runtime.live.recorded()
    with_flames = freeze(report_view(runtime.report(), Shop.graph(), last), history)
    page = opened("with.html", with_flames)
    expect(page.locator("#flames").get_by_role("button", name=SEARCH)).to_be_visible()
    without = freeze(report_view(runtime.report(), Shop.graph(), {**last, "flames": None}), history)
    assert len(with_flames) - len(without) > 50_000, "the library is in it only if something is drawn"
    expect(opened("without.html", without).locator("#flames")).to_be_hidden()


def test_a_consumer_shows_what_its_pool_does(visit) -> None:
    broker = MemoryBroker()
    broker.publish([b"order"])
    with ThreadPoolExecutor(1, "packer") as pool, Consumer(MemorySource(broker), drain_secs=0, ui=PAGE) as consumer:
        next(iter(consumer)).submit(pool, search_the_catalogue)
        assert Work.begun.wait(60), "the pool did not begin the call"
        page = visit(consumer.page.url_with_token)
        page.get_by_role("button", name="Sample its calls").click()
        expect(page.locator("#flames").get_by_role("button", name=SEARCH)).to_be_visible()
        Work.over.set()
