"""Make the pictures of the live page for the documentation: python -m tests.ui.screenshots, or make screenshots.

The browser is that of the tests. A topology runs for half a minute, until one of its tuples is stuck; then a shop runs
in three ways with each of four faults. Arguments, such as consumer-hung, name the pictures to make.
"""

from __future__ import annotations

import base64
import itertools
import logging
import re
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from acker.local import LocalRuntime
from acker.topology import Bolt, ReliableSpout, Topology
from acker.ui import LivePage
from tests.servers import Server
from tests.ui.shop import KINDS, WAYS

FIGURES = Path(__file__).resolve().parents[2] / "docs/screenshots"
TIMEOUT_SECS = 40
STUCK_SECS = TIMEOUT_SECS / 2 + 4
FORGOTTEN = 500
# What the headline says of each fault, and how long it may take to.
TOLD = {
    "hung": re.compile(" hangs?: |has been in one call|; the longest runs"),
    "slow": re.compile("At its limit: .*(slowest|most calls)|has run for .* in charge.* done, with calls of"),
    "failing": re.compile("Failing: .*no sofa"),
    "forgotten": re.compile("(is its ack|are their acks) forgotten"),
}
TOLD_MS = 300_000
QUALITY = 80


class Orders(ReliableSpout):
    outputs = ["order"]
    attempts_max = 2
    backoff_secs = 0.5

    def initialize(self, conf, context):
        self.numbers = itertools.count(1)

    def next_tuple(self):
        number = next(self.numbers)
        self.emit([number], tup_id=f"order-{number}")
        time.sleep(0.006)


class Parse(Bolt):
    outputs = ["order", "item"]

    def process(self, tup):
        for item in range(4):
            self.emit([tup.order, item])


class Price(Bolt):
    outputs = ["order", "item"]

    def process(self, tup):
        time.sleep(0.0006)
        if tup.order % 397 == 0:
            raise LookupError(f"no price for item {tup.item} of order {tup.order}")
        self.emit([tup.order, tup.item])


class Stock(Bolt):
    outputs = ["order"]

    def process(self, tup):
        self.emit([tup.order])


class Bill(Bolt):
    """Forgets one order."""

    auto_ack = False

    def process(self, tup):
        if tup.order != FORGOTTEN:
            self.ack(tup)


class Shop(Topology):
    orders = Orders.spec()
    parse = Parse.spec(inputs=[orders])
    price = Price.spec(inputs=[parse], par=2)
    stock = Stock.spec(inputs=[parse])
    bill = Bill.spec(inputs=[price, stock], par=3)


def shoot(browser: Browser, url: str, name: str, *, width: int, height: int, scheme: str = "light") -> None:
    """Write one picture."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#drawing .node")
    page.wait_for_selector("#trees tbody tr")
    page.screenshot(path=FIGURES / name)
    context.close()
    print(FIGURES / name)


def write_webp(page: Page, path: Path) -> None:
    """Write what a page shows in its window: WebP takes a third of the bytes of PNG, and Playwright has none."""
    asked = {"format": "webp", "quality": QUALITY}
    shown = page.context.new_cdp_session(page).send("Page.captureScreenshot", asked)
    path.write_bytes(base64.b64decode(shown["data"]))
    print(path)


def shoot_fault(browser: Browser, name: str, folder: Path = FIGURES) -> None:
    """Run the shop with a fault until the headline names it, and write the pictures."""
    way, _, kind = name.partition("-")
    with WAYS[way](kind) as live:
        context = browser.new_context(viewport={"width": 1000, "height": 420})
        page = context.new_page()
        page.goto(live.url)
        expect(page.locator("#headline")).to_have_text(TOLD[kind], timeout=TOLD_MS)
        write_webp(page, folder / f"fault-{name}.webp")
        context.close()


def shoot_faults(names: list[str]) -> None:
    """Write the pictures of some faults."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Server("chromium", Path(folder) / "told") as chromium,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.connect_over_cdp(chromium.url)
        for name in names:
            shoot_fault(browser, name)
        browser.close()


def main() -> None:
    """Make the pictures that are named, by default all."""
    logging.disable(logging.ERROR)
    names = sys.argv[1:]
    if not names:
        shoot_page()
    shoot_faults(names or [f"{way}-{kind}" for way in WAYS for kind in KINDS])


def shoot_page() -> None:
    """Run the topology and take its pictures."""
    conf = {"topology.message.timeout.secs": TIMEOUT_SECS, "topology.drain.secs": 0, "topology.max.spout.pending": 400}
    with (
        tempfile.TemporaryDirectory() as folder,
        Server("chromium", Path(folder) / "told") as chromium,
        sync_playwright() as driver,
        LocalRuntime(Shop, conf, ui=LivePage(port=0)) as runtime,
    ):
        browser = driver.chromium.connect_over_cdp(chromium.url)
        url = runtime.page.url
        while (runtime.stats().totals.oldest_age_ms or 0) < 1000 * STUCK_SECS:
            time.sleep(1)
        shoot(browser, url, "live-page.png", width=1200, height=1240)
        shoot(browser, url, "live-page-dark.png", width=1200, height=700, scheme="dark")
        shoot(browser, url, "live-page-narrow.png", width=375, height=800)
        browser.close()


if __name__ == "__main__":
    main()
