"""Reports of shards, as a real query brings them to listeners and to lastProgress."""

import json
import logging
import queue

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from pyspark.sql import functions as F  # noqa: N812

from acker._engine.protocol import COUNTERS
from acker.local.otel import instrument
from acker.local.prometheus import RuntimeCollector
from acker.observe.failures import FailureLog
from acker.spark import AckerListener, batch_report
from acker.spark.streams.listener import METRICS, shard_failures, shard_reports, sum_reports
from acker.spark.streams.reports import AGES, FAILURES, SHARDS, MicroBatchReport, ShardFailure
from acker.spark.streams.streams_view import SeenMicroBatch, StreamFigures, StreamsView
from acker.ui import LivePage
from tests.ui.fakes import ask


def report(shard, batch_id=0, **fields):
    whole = dict.fromkeys(MicroBatchReport._fields, 0) | {"batch_id": batch_id, "shard": shard, "shards": 4}
    return MicroBatchReport(**(whole | fields))


class Told(AckerListener):
    """Says when Spark has told it something."""

    def __init__(self, **options):
        super().__init__(**options)
        self.progress, self.ended = queue.Queue(), queue.Queue()

    def onQueryProgress(self, event):  # noqa: N802
        super().onQueryProgress(event)
        self.progress.put(event.progress)

    def onQueryTerminated(self, event):  # noqa: N802
        super().onQueryTerminated(event)
        self.ended.put(event.runId)


class Watched:
    """A query that is fed reports, one micro-batch a call of `run`, and a listener."""

    def __init__(self, spark, folder, **options):
        self.listener = Told(**options)
        self._spark, self._files, self._checkpoint = spark, folder / "files", folder / "checkpoint"
        self._files.mkdir()
        self._written = 0

    def run(self, reports, name="orders"):
        """Return the query, its figures being told to the listener and its gauges not yet forgotten."""
        table = pa.Table.from_pylist([each._asdict() for each in reports])
        pq.write_table(table, self._files / f"{self._written:03d}.parquet")
        self._written += 1
        schema = ", ".join(f"{field} long" for field in MicroBatchReport._fields)
        frame = self._spark.readStream.schema(schema).parquet(str(self._files))
        observed = frame.observe(
            "acker", F.collect_list(F.struct(*MicroBatchReport._fields)).alias(SHARDS), F.count("*").alias("n")
        )
        observed = observed.observe("other", F.count("*").alias("rows"))
        writer = observed.writeStream.format("noop").queryName(name)
        writer = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        self.listener.progress.get(timeout=60)
        return query


def add_listener(spark, listener):
    """Add a listener that hears nothing of queries that have ended: Spark tells of them later."""
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(60_000)
    spark.streams.addListener(listener)


@pytest.fixture
def watched(spark, tmp_path):
    made = Watched(spark, tmp_path)
    add_listener(spark, made.listener)
    yield made
    spark.streams.removeListener(made.listener)


def points(listener, name):
    return [value for _, value in listener.metrics()[name]]


@pytest.mark.spark
def test_a_real_query_tells_listeners_and_last_progress_the_same(watched, caplog):
    caplog.set_level(logging.INFO, "acker.spark")
    first = [
        report(0, messages=10, acked=3, pending=2, oldest_age_ms=700, time_ms=50),
        report(2, messages=5, pending=9),
    ]
    query = watched.run(first)
    assert shard_reports(query.lastProgress) == {"acker": first}
    assert batch_report(query.lastProgress) == sum_reports(first)._replace(**dict.fromkeys(HELD))
    assert batch_report(query.lastProgress, "other") is None
    (line,) = [record.getMessage() for record in caplog.records if record.name == "acker.spark"]
    assert line.startswith(
        "query=orders acker=acker batch=0 messages=15 acked=3 failed=0 timed_out=0 rejected=0 pending=11"
    )
    assert "oldest_age_ms=700" in line and "shards=2/4" in line and line.rpartition("duration_ms=")[2].isdigit()
    attributes = {"query": "orders", "acker": "acker"}
    assert watched.listener.metrics()["acker.messages.acked"] == [(attributes, 3)]
    watched.listener.ended.get(timeout=60)
    assert points(watched.listener, "acker.trees.pending") == []
    # Started again: counters go on, gauges are of this run.
    query = watched.run([report(0, 1, acked=4, pending=1)])
    assert batch_report(query.lastProgress).acked == 4
    assert points(watched.listener, "acker.messages.acked") == [7]


HELD = ("pending", "open", "oldest_age_ms", "state_bytes", "chunks", "table_bytes")


class Progress(dict):
    """As much of Spark's as is read."""

    def __init__(self, reports, batch_id=0, run_id="r1", name="orders", observed=None):
        rows = {"acker": {SHARDS: [each._asdict() for each in reports]}} if observed is None else observed
        super().__init__(id="q1", runId=run_id, name=name, batchId=batch_id, batchDuration=12, observedMetrics=rows)


class Event:
    def __init__(self, *args, **kwargs):
        self.progress = Progress(*args, **kwargs)
        self.runId = self.progress["runId"]


def test_a_shard_to_which_nothing_came_holds_what_it_held(caplog):
    caplog.set_level(logging.INFO, "acker.spark")
    listener = AckerListener()
    listener.onQueryProgress(
        Event([report(0, pending=5, open=4, state_bytes=10), report(1, pending=7, oldest_age_ms=9)])
    )
    listener.onQueryProgress(Event([report(0, 1, pending=1, messages=2)], 1))
    assert points(listener, "acker.trees.pending") == [8] and points(listener, "acker.trees.open") == [0]
    assert points(listener, "acker.messages.oldest_age") == [0.009]
    assert points(listener, "acker.state.size") == [0]
    assert "messages=2 " in caplog.messages[1] and "pending=8 " in caplog.messages[1]
    assert "shards=1/4" in caplog.messages[1]


def test_a_micro_batch_counts_once():
    listener = AckerListener()
    for run_id, batch_id in (("r1", 0), ("r1", 1), ("r1", 1), ("r2", 1), ("r2", 2)):
        listener.onQueryProgress(Event([report(0, batch_id, acked=1)], batch_id, run_id))
    assert points(listener, "acker.trees.acked") == [4]


def test_both_exporters_show_the_metrics_of_a_listener():
    listener = AckerListener()
    listener.onQueryProgress(Event([report(shard, acked=3, pending=1, oldest_age_ms=2_000) for shard in range(4)]))
    registry = CollectorRegistry(auto_describe=True)
    registry.register(RuntimeCollector(listener))
    attributes = {"query": "orders", "acker": "acker"}
    assert registry.get_sample_value("acker_messages_acked_total", attributes) == 12
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with instrument(listener, provider) as instruments:
        scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        found = {
            each.name: [(dict(point.attributes), point.value) for point in each.data.data_points] for each in scope
        }
        assert instruments.names == [metric.name for metric in METRICS]
        assert found["acker.messages.acked"] == [(attributes, 12)]
        assert found["acker.messages.oldest_age"] == [(attributes, 2)]
    provider.shutdown()


def test_queries_are_told_apart_and_only_the_one_that_ended_is_forgotten():
    listener = AckerListener()
    listener.onQueryProgress(Event([report(0, pending=1)], run_id="r1", name="a"))
    listener.onQueryProgress(Event([report(0, pending=2)], run_id="r2", name=None))
    listener.onQueryTerminated(Event([], run_id="r1"))
    assert listener.metrics()["acker.trees.pending"] == [({"query": "q1", "acker": "acker"}, 2)]
    assert len(listener.metrics()["acker.trees.acked"]) == 2


def test_nothing_is_raised_into_spark(caplog):
    listener = AckerListener()
    listener.onQueryProgress(Event([report(0, acked=1)]))
    listener.onQueryProgress(None)
    listener.onQueryTerminated(None)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert points(listener, "acker.trees.acked") == [1]


@pytest.mark.parametrize(
    "observed",
    [
        None,
        {},
        {"acker": {SHARDS: []}},
        {"mine": {"rows": 3}},
        {"mine": {SHARDS: 3}},
        {"mine": {SHARDS: [{"rows": 3}]}},
        {"mine": {SHARDS: [None]}},
        {"mine": None},
    ],
)
def test_what_is_no_acker_is_passed_over(observed):
    progress = Progress([])
    progress["observedMetrics"] = observed
    assert batch_report(progress) is None
    listener = AckerListener()
    listener.onQueryProgress(Event([], observed=observed))
    assert not any(listener.metrics().values())
    assert batch_report(None) is None


def test_rows_as_spark_connect_brings_them():
    def connect(value):
        names = [{"name": name} for name in value]
        return {"values": list(value.values()), "schema": {"type": "struct", "fields": names}}

    reports = [report(0, acked=2), report(1, acked=3)]
    observed = {"acker": connect({SHARDS: [connect(each._asdict()) for each in reports]})}
    assert shard_reports(Progress([], observed=observed)) == {"acker": reports}


def test_a_micro_batch_that_was_observed_twice_counts_once():
    progress = Progress([report(1, acked=2), report(0, acked=1), report(1, acked=2)])
    assert batch_report(progress).acked == 3
    assert [each.shard for each in shard_reports(progress)["acker"]] == [0, 1]


def test_what_all_shards_hold_is_unknown_if_one_of_them_got_nothing():
    held = dict.fromkeys(HELD, 5)
    reports = [report(shard, acked=2, **held) for shard in range(4)]
    whole = batch_report(Progress(reports))
    assert whole == sum_reports(reports) and (whole.acked, whole.pending, whole.oldest_age_ms) == (8, 20, 5)
    partial = batch_report(Progress(reports[:3]))
    assert [getattr(partial, name) for name in HELD] == [None] * len(HELD)
    assert partial == sum_reports(reports[:3])._replace(**dict.fromkeys(HELD)) and partial.acked == 6


def test_totals_are_sums_but_for_ages_and_clocks():
    reports = [report(0, 3, acked=1, oldest_age_ms=5, time_ms=80), report(1, 4, acked=2, oldest_age_ms=9, time_ms=70)]
    whole = sum_reports(reports)
    assert (whole.acked, whole.oldest_age_ms, whole.time_ms) == (3, 9, 70)
    assert (whole.batch_id, whole.shard, whole.shards) == (4, -1, 4)


def test_the_table_of_metrics_is_of_fields_that_there_are():
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names)) and {metric.field for metric in METRICS} <= {
        *MicroBatchReport._fields,
        "skipped",
    }
    assert {f"acker.trees.{field}" for field in COUNTERS} <= set(names)


@pytest.mark.spark
def test_the_live_page_shows_micro_batches_and_shards(spark, tmp_path):
    made = Watched(spark, tmp_path, ui=LivePage(port=0, interval_secs=0.05))
    page = made.listener.page

    def view():
        return json.loads(ask(page, "/api/view")[2])

    add_listener(spark, made.listener)
    try:
        assert view()["state"] == "new" and view()["headline"]["text"].startswith("Waiting for the first micro-batch")
        gauges = {"pending": 5, "open": 4, "oldest_age_ms": 7_000, "state_bytes": 1_000}
        made.run([report(0, messages=9, acked=3, **gauges), report(1, messages=2, acked=1, timed_out=1)])
        while not (now := view())["tables"][0]["rows"]:
            pass
        assert (now["kind"], now["state"]) == ("stream", "running")
        assert {name: now["totals"][name] for name in ("acked", "timed_out", "messages")} == {
            "acked": 4,
            "timed_out": 1,
            "messages": 11,
        }
        assert now["tables"][0]["rows"][0][0] == "orders 0" and now["tables"][0]["rows"][0][2:4] == [11, 4]
        assert now["open_trees"] is None and now["actions"] == ["log-level"]
        assert b'acker_messages_acked_total{acker="acker",query="orders"} 4.0' in ask(page, "/metrics")[2]
        stats = json.loads(ask(page, "/api/stats")[2])
        assert stats["acker.messages.acked"] == [{"query": "orders", "acker": "acker", "value": 4}]
    finally:
        spark.streams.removeListener(made.listener)
        made.listener.close()
    with pytest.raises(ConnectionRefusedError):
        ask(page, "/")
    made.listener.close()


def figures(*shards, batches=()):
    sums = dict.fromkeys(MicroBatchReport._fields, 0)
    return StreamFigures(sums, [("orders", "acker", each) for each in shards], list(batches), {})


def test_the_page_lists_the_last_trees_that_were_not_acked_with_what_is_known_of_them():
    listener = AckerListener()
    first = [ShardFailure("b\N{LATIN SMALL LETTER E WITH ACUTE}", 3, 1, 40, 77, "parse", "ValueError: no number", 2)]
    second = [ShardFailure("8", 0, 2, 60_000, 88), ShardFailure(None, 0, 3, 0, 99)]
    rows = [
        report(shard, failed=1)._asdict() | {FAILURES: [each._asdict() for each in failures]}
        for shard, failures in enumerate((first, second))
    ]
    for _ in range(2):  # told twice, it counts once
        listener.onQueryProgress(Event([], observed={"acker": {SHARDS: rows}}))
    listener.onQueryProgress(Event([], observed={"other": {SHARDS: [report(0)._asdict()]}}))
    shown = listener._view.view()["failures"]
    columns = ("id", "spout", "kind", "component", "why", "attempt", "elapsed_ms")
    assert [tuple(row[name] for name in columns) for row in shown["rows"]] == [
        ("(no id)", "orders", "rejected", None, None, None, 0),
        ("8", "orders", "timed out", None, None, None, 60_000),
        ("b\u00e9", "orders", "failed", "parse", "ValueError: no number", 2, 40),
    ]
    assert shown["counted"] == 3 and len(shown["reasons"]) == 3
    assert [row["id"] for text in ("8", "b\u00e9", "9") for row in listener._view.find(text)] == ["8", "b\u00e9"]
    assert shard_failures(Event([], observed={"acker": {SHARDS: rows}}).progress) == [*first, *second]


def test_the_page_shows_open_trees_by_age_as_of_the_last_rotation_of_each_shard():
    def rows(*ages):
        return [report(shard)._asdict() | {AGES: each} for shard, each in enumerate(ages)]

    def shown():
        (table,) = [each for each in listener._view.view()["tables"] if each["key"] == "ages"]
        return table["rows"]

    listener = AckerListener()
    assert shown() == []
    listener.onQueryProgress(Event([], 0, observed={"acker": {SHARDS: rows([3, 0, 1, 0, 0, 0, 0, 0], None)}}))
    assert shown() == [["orders acker", 3, 0, 1, 0, 0, 0, 0, 0]]
    listener.onQueryProgress(Event([], 1, observed={"acker": {SHARDS: rows(None, [1, 0, 0, 0, 0, 0, 0, 9])}}))
    assert shown() == [["orders acker", 4, 0, 1, 0, 0, 0, 0, 9]]
    listener.onQueryTerminated(Event([], 1))
    assert shown() == []


def test_the_headline_of_the_page_tells_the_last_micro_batch():
    def headline(*shards, **lists):
        return StreamsView(lambda: figures(*shards, **lists), METRICS, FailureLog()).view()["headline"]

    assert headline()["tone"] == "idle"
    last = SeenMicroBatch(0, "orders", "acker", 7, report(-1, acked=1_200, messages=1_300), 250)
    assert headline(batches=[last]) == {"tone": "idle", "text": "No query runs."}
    held = report(0, pending=2, oldest_age_ms=12_000)
    assert headline(held, batches=[last]) == {
        "tone": "good",
        "text": "The last micro-batch of orders acked 1,200. 2 trees are pending, the oldest for 12.0 s.",
    }
    lost = last._replace(report=report(-1, acked=1, failed=2, timed_out=1))
    assert headline(held, batches=[lost])["tone"] == "fair"
