"""The live page of a topology on Spark in a real browser: four faults, each found by the headline alone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.spark.topologies.faulty import ORDERS, shops_of
from tests.ui.test_browser import has_text

# Beyond the 20 s in which a fault is found: a session may start first, on a machine that others load.
PATIENCE_MS = 240_000

pytestmark = pytest.mark.spark


@pytest.fixture
def shops(spark, tmp_path, monkeypatch):
    with shops_of(spark, tmp_path, monkeypatch) as shops:
        yield shops


def told(page, text, tone):
    """Wait until the headline says it."""
    expect(page.locator("#headline")).to_have_text(text, timeout=PATIENCE_MS)
    expect(page.locator("#headline")).to_have_class(re.compile(f"headline {tone}"))


def test_a_call_that_hangs_on_a_worker_is_found_by_the_headline_and_the_log(visit, shops, caplog) -> None:
    shop = shops.start("hung")
    page = visit(shop.page.url)
    call = r"a tuple of orders \(message order-7\) at faulty\.py:\d+ in Charge\.wait"
    told(page, re.compile(rf"charge\[2\] hangs: it has been in one call with {call} for \d+ s\."), "bad")
    # Other tasks stand there, too, where the machine is slow.
    rows = page.locator("#tables section", has_text="Tasks that work for long").locator("tbody tr")
    row = rows.filter(has_text="charge[2]")
    for text in ("stage ", "partition 0", "charge[2]", "message order-7", "faulty.py"):
        expect(row).to_have_text(has_text(text))
    holder = page.locator("#trees tbody tr", has_text="order-7").first
    expect(holder).to_have_text(re.compile(r"charge\[2\] in user code for .*, at faulty\.py:\d+ in Charge\.wait"))
    expect(page.locator("#drawing .node.bolt")).to_have_text(has_text("busy 100 %"))
    report = shop.end()
    assert report.stats.totals.acked == ORDERS
    (warned,) = [message for message in caplog.messages if " hangs on " in message]
    where = rf"it has been in one call with {call.replace('faulty', '.*faulty')} for"
    assert re.match(rf"Shop: charge\[2\] hangs on \S+, stage \d+, partition 0: {where}", warned)


@pytest.mark.slow
def test_a_slow_bolt_on_spark_is_found_by_the_headline(visit, shops) -> None:
    shop = shops.start("slow")
    page = visit(shop.page.url)
    told(page, re.compile(r"Micro-batch 0 has run for \d+ s: a task is in charge\[2\], at faulty\.py:\d+ in "), "fair")
    shop.end()
    expect(page.locator("#tables section", has_text="Stages of the last micro-batch").locator("tbody tr")).to_have_text(
        has_text("charge")
    )


@pytest.mark.slow
def test_a_bolt_that_fails_tuples_on_spark_is_found_by_the_headline(visit, shops) -> None:
    shop = shops.start("failing")
    page = visit(shop.page.url)
    why = r": in charge: LookupError: no sofa is left, faulty\.py:\d+ in Charge\.process\."
    told(page, re.compile(rf"Failing: \d+ of \d+ trees in the last seconds.*{why}"), "(fair|bad)")
    shop.end()


@pytest.mark.slow
def test_a_bolt_that_forgets_to_ack_on_spark_is_found_by_the_headline(visit, shops) -> None:
    shop = shops.start("forgotten")
    page = visit(shop.page.url)
    why = r"which neither acked nor failed them: are their acks forgotten\?"
    where = r"at .charge., faulty\.py:\d+ in Charge\.process"
    told(page, re.compile(rf"\d+ trees were open at the end of a micro-batch {where}, {why}"), "bad")
    shop.end()
