"""Tracked pipelines on streaming DataFrames: each micro-batch runs the plan that a batch of the same rows would."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from dataclasses import asdict

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

from acker import Outcome
from acker._engine.combiner import Combiner
from acker.errors import AckerError
from acker.spark import batch_report, completions_of
from acker.spark.blocks import decode_block
from acker.spark.pipelines.tracked import spout
from tests.spark.lossy import lose

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

SCHEMA = "line long, text string"
LOTS = [
    [(1, "a b a"), (2, ""), (3, "boom here")],
    [(4, "c")],
    [(5, "d e f lost"), (6, "b"), (7, "boom"), (8, "ünï ☃")],
]


def split(row):
    if row.text.startswith("boom"):
        raise ValueError(f"no: {row.text}")
    return row.text.split()


def keep(row):
    return [tuple(row)]


def counted(frame, run_seed=1):
    words = spout(frame, message_id="line", component="lines", run_seed=run_seed, shards=2)
    words = lose(words.bolt(split, schema="word string"), "word", "lost")
    return words.grouped("word").bolt(keep, schema="word string", component="count", sink=True)


@pytest.fixture(scope="module")
def folder(spark, tmp_path_factory):
    """A folder with a file for each lot, in the order of their times."""
    root = tmp_path_factory.mktemp("lots")
    for number, lot in enumerate(LOTS):
        spark.createDataFrame(lot, SCHEMA).coalesce(1).write.mode("append").json(str(root / f"lot={number}"))
    return root


@pytest.fixture
def stream(spark, folder):
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).option("recursiveFileLookup", True)
    return reader.json(str(folder))


def written(frame, function, checkpoint) -> None:
    query = (
        frame.writeStream.foreachBatch(function)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    query.awaitTermination()


def gathered(rows) -> dict[int, tuple[int, ...]]:
    """What blocks say together, by root."""
    combiner = Combiner()
    for row in rows:
        combiner.merge(decode_block(row.block)[0])
    (partials,) = combiner.partials(1)
    columns = [column.tolist() for column in partials[:6]]
    return {values[0]: values[1:] for values in zip(*columns, strict=True)}


@pytest.mark.slow
def test_micro_batches_add_up_to_the_batch_of_the_same_rows(spark, stream, tmp_path) -> None:
    pipeline = counted(stream)
    batches, blocks, data, failures, sums = set(), [], Counter(), [], {}

    def write(frame, batch_id):
        part = pipeline.micro_batch(frame).persist()
        batches.add(batch_id)
        blocks.extend(part.blocks().collect())
        data.update(row.word for row in part.data().collect())
        failures.extend(part.failures().collect())
        for name, counters in part.counters().components.items():
            sums[name] = Counter(sums.get(name, {})) + Counter(
                {key: value for key, value in asdict(counters).items() if key not in ("function_ns", "fanout")}
            )
        part.unpersist()

    written(pipeline.dataframe, write, tmp_path / "checkpoint")
    whole = counted(spark.createDataFrame([row for lot in LOTS for row in lot], SCHEMA)).persist()
    assert len(batches) == len(LOTS)
    assert gathered(blocks) == gathered(whole.blocks().collect())
    assert data == Counter(row.word for row in whole.data().collect())
    assert sorted(failures) == sorted(whole.failures().collect())
    for name, counters in whole.counters().components.items():
        assert dict(sums[name]) == {key: n for key, n in asdict(counters).items() if n and key in sums[name]}, name
    assert set(sums) == {"lines", "split", "count"}
    whole.unpersist()


@pytest.mark.soak
def test_two_queries_over_one_source_agree_about_every_tree(stream, tmp_path) -> None:
    """One writes the messages, the other the data: the ids of one fit the other's, whoever reads how much at a time."""
    pipeline = counted(stream)
    found = {"blocks": [], "words": []}
    written(pipeline.blocks(), lambda frame, _: found["blocks"].extend(frame.collect()), tmp_path / "blocks")
    written(pipeline.data(), lambda frame, _: found["words"].extend(frame.collect()), tmp_path / "words")
    again = counted(stream)
    repeated = []
    written(again.blocks(), lambda frame, _: repeated.extend(frame.collect()), tmp_path / "again")
    other = []
    written(counted(stream, run_seed=2).blocks(), lambda frame, _: other.extend(frame.collect()), tmp_path / "other")
    assert gathered(found["blocks"]) == gathered(repeated)
    assert not gathered(other).keys() & gathered(repeated).keys()
    assert sorted(row.word for row in found["words"]) == ["a", "a", "b", "b", "c", "d", "e", "f", "ünï", "☃"]


@pytest.fixture
def rocksdb(spark):
    """What the state of an acker needs."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("rocksdb")
def test_trees_of_a_stream_end_once_and_lost_ones_in_time(stream, tmp_path) -> None:
    done = counted(stream).completions(timeout="1 second")
    found, all_ended = [], threading.Event()

    def write(frame, _batch_id):
        if all_ended.is_set():
            return  # The query is to be stopped, and a function that waits for Spark then may end it with an error.
        found.extend((row.message_id, Outcome(row.outcome)) for row in frame.collect())
        if len(found) == sum(map(len, LOTS)):
            all_ended.set()

    query = done.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)).start()
    while query.isActive and not all_ended.wait(1):
        pass
    query.stop()
    assert query.exception() is None
    failed, lost = {3: Outcome.FAILED, 7: Outcome.FAILED}, {5: Outcome.TIMED_OUT}
    assert dict(found) == {line: Outcome.ACKED for lot in LOTS for line, _ in lot} | failed | lost
    assert len(found) == 8 and found[-1] == (5, Outcome.TIMED_OUT)


@pytest.mark.slow
@pytest.mark.usefixtures("rocksdb")
def test_two_pipelines_settle_in_one_query(spark, stream, tmp_path) -> None:
    """Each has an observation of its own, so its reports are told apart."""
    others = spout(stream, message_id="line", component="others", run_seed=5, shards=1)
    others = others.bolt(lambda row: None, schema="x int", component="end", sink=True)
    one = counted(stream).completions(timeout="1 hour", name="one")
    both = one.union(completions_of(others, timeout="1 hour", name="other"))
    writer = both.writeStream.format("memory").queryName("both").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    lines = [line for lot in LOTS for line, _ in lot]
    ended = sorted(row.message_id for row in spark.table("both").collect())
    assert ended == sorted([*lines, *(line for line in lines if line != 5)])  # of line 5 a word is lost
    found = {name: sum(batch_report(each, name).acked for each in query.recentProgress) for name in ("one", "other")}
    assert found == {"one": len(lines) - 3, "other": len(lines)}


MINUTE_MS = 60_000
TIMES = {line: line * MINUTE_MS for lot in LOTS for line, _ in lot}


def timed(stream, name: str) -> DataFrame:
    """The lots, line n at minute n; no bolt hands the time on."""
    return stream.withColumn(name, F.timestamp_millis(F.col("line") * MINUTE_MS))


def settled(frame, name, checkpoint) -> tuple[list[tuple[int, Outcome]], StreamingQuery]:
    writer = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    rows = frame.sparkSession.table(name).collect()
    return sorted((row.message_id, Outcome(row.outcome)) for row in rows), query


ENDED = dict.fromkeys(TIMES, Outcome.ACKED) | {3: Outcome.FAILED, 7: Outcome.FAILED}


@pytest.mark.slow
@pytest.mark.usefixtures("rocksdb")
def test_trees_of_a_pipeline_expire_by_the_watermark(spark, stream, folder, tmp_path) -> None:
    """Of line 5 a word is lost. It is over once the watermark is at minute 7, and the last line is at minute 8."""
    options = {"timeout": "1 minute", "event_time": "a `time.stamp"}
    whole = spark.readStream.schema(SCHEMA).option("recursiveFileLookup", True).json(str(folder))
    done = counted(timed(whole, "a `time.stamp")).completions(**options)
    found, _ = settled(done, "by_watermark", tmp_path / "whole")
    assert dict(found) == ENDED | {5: Outcome.TIMED_OUT} and len(found) == len(TIMES)
    waiting = counted(timed(stream, "a `time.stamp")).completions(**options, watermark_delay="2 minutes")
    found, query = settled(waiting, "by_watermark_late", tmp_path / "late")
    assert dict(found) == {line: outcome for line, outcome in ENDED.items() if line != 5}
    assert query.lastProgress["eventTime"]["watermark"].startswith("1970-01-01T00:06:00")


@pytest.mark.slow
@pytest.mark.usefixtures("rocksdb")
def test_two_pipelines_settle_by_event_time_in_one_query(stream, tmp_path) -> None:
    """One of two branches and a shuffle, settled by bigint times; the other of another time and name."""
    source = timed(stream, "at").withColumn("at_ms", F.col("line") * MINUTE_MS)
    words = spout(source, message_id="line", component="lines", run_seed=1, shards=2)
    words = words.bolt(split, schema="word string")
    left, right = words.branches(2)
    left = left.grouped("word").bolt(keep, schema="word string", component="left", sink=True)
    right = lose(right, "word", "lost").bolt(keep, schema="word string", component="right", sink=True)
    one = completions_of(left, right, timeout="1 minute", event_time="at_ms", name="one")
    others = spout(source, message_id="line", component="others", run_seed=5, shards=1)
    others = others.bolt(lambda row: None, schema="x int", component="end", sink=True)
    other = others.completions(timeout="1 minute", event_time="at", name="other")
    found, query = settled(one.union(other), "both_by_watermark", tmp_path)
    expected = [*(ENDED | {5: Outcome.TIMED_OUT}).items(), *((line, Outcome.ACKED) for line in TIMES)]
    assert found == sorted(expected)
    reports = {name: [batch_report(each, name) for each in query.recentProgress] for name in ("one", "other")}
    sums = {
        name: (sum(r.acked for r in told if r), sum(r.timed_out for r in told if r)) for name, told in reports.items()
    }
    assert sums == {"one": (len(TIMES) - 3, 1), "other": (len(TIMES), 0)}


@pytest.mark.soak
@pytest.mark.usefixtures("rocksdb")
def test_a_column_of_event_times_must_be_there_and_hold_times(spark, stream, tmp_path) -> None:
    pipeline = counted(timed(stream, "at"))
    other = spout(stream, message_id="line", component="others", run_seed=5, shards=2)
    other = other.bolt(keep, schema="word string", component="end", sink=True)
    expected = "event_time: expected a column of timestamps or of bigint milliseconds in rows of"
    bad = [
        (lambda: pipeline.completions(event_time="when"), f"{expected} 'lines', got the columns line, text, at"),
        (lambda: pipeline.completions(event_time="text"), f"{expected} 'lines', got 'text', which is string"),
        (lambda: pipeline.completions(event_time=True), "event_time: expected the name of a column, got bool"),
        (lambda: completions_of(pipeline, other, event_time="at"), f"{expected} 'others', got the columns line, text"),
        (lambda: pipeline.union(other).completions(event_time="at"), f"{expected} 'others', got"),
        (lambda: pipeline.completions(event_time="at", timeout=1e-4), "by event time expected 1 millisecond"),
    ]
    for make, text in bad:
        with pytest.raises(AckerError, match=text):
            make()
    batch = counted(timed(spark.createDataFrame(LOTS[2], SCHEMA), "at"))
    with pytest.raises(AckerError, match=r"^event_time: only a stream has this option"):
        batch.completions(event_time="at")
    done = batch.completions(include_pending=True)
    assert sorted((row.message_id, row.outcome) for row in done.collect()) == [(5, 4), (6, 0), (7, 1), (8, 0)]
    holed = counted(stream.withColumn("at", F.when(F.col("line") != 2, F.current_timestamp())))
    with pytest.raises(
        StreamingQueryException, match="lines: the row whose line is 2: at: expected a time in each row"
    ):
        settled(holed.completions(timeout="1 minute", event_time="at"), "holed", tmp_path)


def test_what_needs_the_end_of_the_data_is_refused(spark, stream) -> None:
    pipeline = counted(stream)
    batch = spout(spark.createDataFrame(LOTS[0], SCHEMA), message_id="line", component="others", shards=2)
    streaming = spout(stream, message_id="line", run_seed=1, shards=2)
    bad = [
        (lambda: spout(stream, message_id="line"), r"run_seed: expected a number for a streaming frame, got None"),
        (pipeline.persist, r"persist: expected a pipeline on a batch DataFrame, got a streaming one; .*micro_batch"),
        (pipeline.acked, r"acked: expected a pipeline on a batch DataFrame"),
        (pipeline.counters, r"counters: expected a pipeline on a batch DataFrame"),
        (lambda: pipeline.completions(include_pending=True), r"include_pending: only a batch has this option"),
        (lambda: pipeline.completions(timeout=5), r"RocksDB"),
        (lambda: pipeline.completions(timeout=0), r"timeout: expected a duration"),
        (lambda: pipeline.completions(protocol="fsshelter"), r"protocol: 'fsshelter' needs the order of messages"),
        (lambda: pipeline.micro_batch(pipeline.dataframe), r"frame: expected the argument of a foreachBatch function"),
        (lambda: pipeline.micro_batch(batch.dataframe), r"frame: .* word, acker_anchors, .*, got the columns line"),
        (lambda: streaming.union(batch), r"expected pipelines that are all streaming or all batch, got both"),
        (lambda: completions_of(pipeline, batch), r"all streaming or all batch, got both"),
    ]
    for make, text in bad:
        with pytest.raises(AckerError, match=text):
            make()
    with pytest.warns(UserWarning, match="no bolt reads what 'others' emits"):
        assert batch.completions().count() == 0
