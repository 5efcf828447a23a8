"""The live page of streaming queries in a real browser."""

from __future__ import annotations

from playwright.sync_api import expect

from acker.observe.failures import FailureLog
from acker.observe.reasons import Reason, ReasonKind
from acker.spark.streams import streams_view
from acker.spark.streams.reports import MicroBatchReport
from tests.ui.test_browser import has_text


def test_streaming_ackers_are_shown(visit, serve) -> None:
    report = dict.fromkeys(MicroBatchReport._fields, 0) | {"pending": 2, "acked": 1_200, "state_bytes": 1_500_000}
    seen = streams_view.SeenMicroBatch(1_700_000_000_000, "orders", "acker", 7, MicroBatchReport(**report), 250)
    sums = dict.fromkeys(MicroBatchReport._fields, 0) | {"acked": 1_200}
    shards = [("orders", "acker", MicroBatchReport(**report))]
    reason = Reason(ReasonKind.FAILED, "parse", None, "ValueError: no number", 2)
    failures = FailureLog()
    failures.record("orders", 0, "order 7", reason, 40, 77)
    failures.record("orders", 0, "order 8", Reason(ReasonKind.TIMED_OUT, attempt=0), 60_000, 88)
    figures = streams_view.StreamFigures(sums, shards, [seen], {})
    server = serve(streams_view.StreamsView(lambda: figures, [], failures))
    page = visit(server.url)
    expect(page.locator("#headline")).to_have_text(has_text("The last micro-batch of orders acked 1,200."))
    row = page.locator("#tables section", has_text="Micro-batches").locator("tbody tr")
    expect(row).to_have_text(has_text("orders 7"))
    expect(row).to_have_text(has_text("250 ms"))
    expect(page.locator("#tables section", has_text="Shards").locator("tbody tr")).to_have_text(has_text("1.5 MB"))
    for name in ("#graph", "#trees", "#dead", "#components", "#search"):
        expect(page.locator(name)).to_be_hidden()
    late, failed = page.locator("#failures tbody tr").all()
    for text in ("order 7", "failed in parse: ValueError: no number", "2", "40 ms"):
        expect(failed).to_have_text(has_text(text))
    for text in ("order 8", "timed out"):
        expect(late).to_have_text(has_text(text))
    expect(page.locator("#charts canvas")).to_have_count(5)
