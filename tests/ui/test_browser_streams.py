"""The live page of streaming queries in a real browser."""

from __future__ import annotations

from playwright.sync_api import expect

from acker.observe.calls import Line
from acker.observe.failures import FailureLog
from acker.observe.headline import RunningJob
from acker.observe.reasons import Reason, ReasonKind
from acker.spark.streams import streams_view
from acker.spark.streams.reports import MicroBatchReport
from acker.spark.task_reports import PIPELINES, TaskReport
from tests.ui.test_browser import has_text


def test_streaming_ackers_are_shown(visit, serve) -> None:
    report = dict.fromkeys(MicroBatchReport._fields, 0) | {"pending": 2, "acked": 1_200, "state_bytes": 1_500_000}
    seen = streams_view.SeenMicroBatch(1_700_000_000_000, "orders", "acker", 7, MicroBatchReport(**report), 250)
    shares = [MicroBatchReport(**report | {"native_ns": n * 10**6}) for n in (20, 30, 400)]
    skew = streams_view.ShardSkew.of(shares)
    seen = seen._replace(commit_ms=31, skew=skew)
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
    for text in ("250 ms", "31 ms", "30 ms", "400 ms"):
        expect(row).to_have_text(has_text(text))
    expect(page.locator("#tables section", has_text="Shards").locator("tbody tr")).to_have_text(has_text("1.5 MB"))
    for name in ("#graph", "#trees", "#dead", "#components", "#search"):
        expect(page.locator(name)).to_be_hidden()
    late, failed = page.locator("#failures tbody tr").all()
    for text in ("order 7", "failed in parse: ValueError: no number", "2", "40 ms"):
        expect(failed).to_have_text(has_text(text))
    for text in ("order 8", "timed out"):
        expect(late).to_have_text(has_text(text))
    expect(page.locator("#charts canvas")).to_have_count(5)


def test_a_row_that_hangs_in_a_pipeline_is_found_by_the_headline(visit, serve) -> None:
    stack = (Line("/src/orders.py", 31, "parse"),)
    report = TaskReport(PIPELINES, "7.100", 1, 4, 1, "worker", "parse > store", 60_000)
    hung = report._replace(component="parse", root_id=77, call_ms=42_000, done=9, timeout_ms=30_000, stack=stack)
    figures = streams_view.StreamFigures(dict.fromkeys(MicroBatchReport._fields, 0), [], [], {})
    server = serve(streams_view.StreamsView(lambda: figures, [], FailureLog(), lambda: [hung]))
    page = visit(server.url)
    said = (
        "parse hangs: it has been in one call with row 10 of its task (root id 77) at orders.py:31 in parse for 42 s."
    )
    expect(page.locator("#headline")).to_have_text(said)
    row = page.locator("#tables section", has_text="Tasks that work for long").locator("tbody tr")
    expect(row).to_have_text(has_text("stage 4, partition 1 on worker"))


def test_a_micro_batch_of_a_query_that_runs_for_long_is_told(visit, serve) -> None:
    figures = streams_view.StreamFigures(dict.fromkeys(MicroBatchReport._fields, 0), [], [], {})
    job = RunningJob("the micro-batch of Orders", 42_000, 1_200.0, "of Spark's stage 4, 1 of 8 tasks are done")
    server = serve(streams_view.StreamsView(lambda: figures, [], FailureLog(), job=lambda _: job))
    page = visit(server.url)
    said = f"The micro-batch of Orders has run for 42 s, and usually takes 1.2 s: {job.where}."
    expect(page.locator("#headline")).to_have_text(said)
