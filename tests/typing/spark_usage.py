"""acker on Spark as typed code writes it. Never run: mypy checks it, unneeded ignores included."""

from collections.abc import Callable, Sequence
from typing import Any, assert_type

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import acker
import acker.spark as aspark


def batches(spark: SparkSession, messages: DataFrame) -> None:
    assert_type(acker.MESSAGE_SCHEMA, pa.Schema)
    assert_type(aspark.completions(messages, shards=8, timeout="90 seconds", buckets=4), DataFrame)
    assert_type(aspark.completions(messages, include_pending=True), DataFrame)
    assert_type(aspark.completions_from_files(spark, ["a.parquet", "b.arrow"], protocol="storm-0.9"), DataFrame)
    assert_type(aspark.completions_from_blocks(messages, column="packed", shard="part", shards=4), DataFrame)

    aspark.completions(messages, 8)  # type: ignore[call-arg]
    aspark.completions(messages, shards="8")  # type: ignore[arg-type]
    aspark.completions_from_files(spark, [1])  # type: ignore[list-item]
    aspark.completions_from_blocks(messages, deadline=1)  # type: ignore[call-arg]
    aspark.completions_from_blocks(messages, buckets="3")  # type: ignore[arg-type]


def split(row: Any) -> Sequence[str] | None:
    return str(row.text).split()


def lengths(batch: pa.RecordBatch) -> aspark.Outputs:
    return aspark.Outputs(pa.table({"length": [1, 2]}), parent=[0, [0, 1]], failed={2: "too long"})


def count_by_word(words: aspark.Tracked) -> aspark.Aggregated:
    return words.grouped("word").agg("count(*) as number")


def pipelines(lines: DataFrame) -> None:
    first = aspark.spout(lines, message_id="line", source="file")
    assert_type(first, aspark.Tracked)
    words = first.bolt(split, schema="word string").grouped("word")
    assert_type(words.bolt(lengths, schema="length long", by="batch", sink=True), aspark.Tracked)
    assert_type(words.branches(2), tuple[aspark.Tracked, ...])
    assert_type(words.persist().completions(timeout=90.0), DataFrame)
    assert_type(aspark.completions_of(words, first, high_water=1000), DataFrame)
    assert_type(words.counters().messages, int)
    assert_type(words.columns, list[str])
    totals = words.transform(count_by_word)
    assert_type(totals, aspark.Aggregated)
    assert_type(totals.persist(), aspark.Aggregated)
    assert_type(words.persist().agg("count(*)").acked(), DataFrame)
    assert_type(aspark.completions_of(totals, first), DataFrame)

    totals.where("number > 1")  # type: ignore[attr-defined]
    aspark.spout(lines, "line")  # type: ignore[call-arg]
    words.bolt(split)  # type: ignore[call-arg]
    words.bolt("split", schema="word string")  # type: ignore[arg-type]


def streams(spark: SparkSession, messages: DataFrame, query: StreamingQuery) -> None:
    def settle(done: acker.Completions, batch_id: int) -> None:
        assert_type(batch_id, int)

    assert_type(aspark.for_each_completion(settle, empty=True), Callable[[DataFrame, int], None])
    aspark.completions(
        messages, timeout=60, event_time="at", watermark_delay="5 seconds", name="orders"
    ).writeStream.foreachBatch(aspark.for_each_completion(settle))
    files = aspark.completions_from_files(spark, "drop/", streaming=True, max_files_per_trigger=10, timeout="1 minute")
    assert_type(files, DataFrame)
    listener = aspark.AckerListener()
    spark.streams.addListener(listener)
    assert_type(listener.metrics(), dict[str, list[tuple[dict[str, str], float]]])
    report = aspark.batch_report(query.lastProgress)
    if report is not None:
        assert_type(report.acked, int)
        assert_type(report.pending, int | None)

    aspark.for_each_completion(1)  # type: ignore[arg-type]
    aspark.for_each_completion(lambda done: None)  # type: ignore[arg-type,misc]
