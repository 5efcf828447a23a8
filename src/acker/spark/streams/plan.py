"""Completions of a stream: the plan around the stateful operator.

    messages -> blocks, combined by the task that has them -> one row a shard -> the operator -> completions
    ticks ------------------------------------------------------^

The operator's output holds its reports too. An observation takes them, and a filter drops them.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.protocol import PROTOCOLS, divide_up
from acker._engine.schemas import COMPLETION_SCHEMA
from acker._engine.user_frames import user_stacklevel
from acker.spark.block_settlement import completions_ddl
from acker.spark.notes import Failed
from acker.spark.partition_keys import partition_key
from acker.spark.session_checks import check_streaming_session, state_partitions
from acker.spark.streams.reports import AGES, AGES_DDL, FAILURES, FAILURES_DDL, SHARDS, MicroBatchReport
from acker.spark.streams.shard_rules import ShardRules

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from acker.spark.options import CompletionOptions


def completions_of_block_stream(
    blocks: DataFrame, shards: int, options: CompletionOptions, *, ids: str | None = None
) -> DataFrame:
    """Settle the blocks of a stream.

    Parameters
    ----------
    blocks : DataFrame
        A streaming one of ``shard int, block binary``, as `acker.spark.streams.rows.block_batches` makes them; with
        ``event_ms long`` where `options` has an event time.
    shards : int
        The number of shards into which the blocks were split.
    options : CompletionOptions
    ids : str, optional
        The messages are those of a pipeline, whose message ids have this type: there are notes among the blocks, and
        completions say why trees failed; a tree with two TRACKs in one micro-batch ends the query.
    """
    session = blocks.sparkSession
    check_streaming_session(session)
    if options.timeout is None:
        _warn_of_no_timeout()
    rules = make_rules(options, shards=shards, partitions=state_partitions(session), ids=ids)
    event_time = options.event_time is not None
    # Imported here, since it imports pandas, which a worker that only combines does not need.
    from acker.spark.streams.operator import OUTPUT_DDL, AckerProcessor

    output = completions_ddl(OUTPUT_DDL, ids)

    if event_time:
        blocks = blocks.withColumn("event_time", F.timestamp_millis("event_ms")).withWatermark(
            "event_time", options.delay
        )
    rows = blocks.select("shard", "block")
    if not event_time:
        rows = rows.union(_ticks(session, shards))
    else:
        rows = _copy_to_first_shard(rows)
    processor = AckerProcessor(rules, options.observation)
    produced = (
        rows.select(
            partition_key(F.col("shard"), shards).alias("partition_key"),
            "shard",
            "block",
            _clock_ms().alias("clock_ms"),
        )
        .groupBy("partition_key")
        .transformWithStateInPandas(processor, output, "Append", "EventTime" if event_time else "None")
    )
    return (
        produced.observe(options.observation, _collect_reports().alias(SHARDS))
        .where(F.col("report").isNull())
        .select(*COMPLETION_SCHEMA.names, *(() if ids is None else Failed._fields))
    )


def _clock_ms() -> Column:
    """Return the time of the micro-batch in milliseconds.

    It is a literal, another one in each micro-batch. In code that Spark generates it would be compiled each time anew,
    which takes 50 ms; for `zip_with` Spark generates none.
    """
    now = F.array(F.current_timestamp())
    return F.zip_with(now, now, lambda one, _: F.unix_millis(one))[0]


def make_rules(options: CompletionOptions, *, shards: int, partitions: int, ids: str | None = None) -> ShardRules:
    """Return the rules by which each shard of a stream settles trees."""
    high_water = options.high_water
    return ShardRules(
        shards=shards,
        partitions=partitions,
        timeout_ms=options.timeout_ms,
        buckets=options.bucket_count,
        high_water=None if high_water is None else divide_up(high_water, shards),
        every_message_refreshes=options.protocol == PROTOCOLS[1],
        event_time=options.event_time is not None,
        ids=ids,
    )


@functools.cache
def _warn_of_no_timeout() -> None:
    """Warn once."""
    warnings.warn(
        "timeout: without one a tree that lost a message is held for ever; give one, such as timeout='90 seconds'",
        UserWarning,
        stacklevel=user_stacklevel(),
    )


def _copy_to_first_shard(rows: DataFrame) -> DataFrame:
    """Send shard 0 an empty row for each block, so that it notices another number of shards than the checkpoint's.

    The key of shard 0 does not depend on their number. By the clock the ticks reach all shards anyway.
    """
    row, nothing = (
        F.struct("shard", "block"),
        F.struct(F.lit(0).alias("shard"), F.lit(None).cast("binary").alias("block")),
    )
    both = F.when(F.col("shard") == 0, F.array(row)).otherwise(F.array(row, nothing))
    return rows.select(F.explode(both).alias("row")).select("row.*")


def _ticks(session: SparkSession, shards: int) -> DataFrame:
    """Return a row for each shard in every micro-batch, so that trees time out without messages.

    Queries without a timeout have it too: a checkpoint fixes the number of sources, so the timeout could not be given
    later.

    This source of Spark's has one row more whenever it is asked, so every trigger runs a micro-batch. The trigger
    AvailableNow still ends, which it would not with processing-time timers, and still takes the data of other sources
    in several micro-batches, which it would not with the source "rate".
    """
    ticks = session.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
    every = F.explode(F.sequence(F.lit(0), F.lit(shards - 1)))
    return ticks.select(every.alias("shard"), F.lit(None).cast("binary").alias("block"))


def _collect_reports() -> Column:
    """Return the reports of a micro-batch as an array of rows with names."""
    fields = [f"{field} bigint" for field in MicroBatchReport._fields]
    schema = ", ".join([*fields, f"{FAILURES} {FAILURES_DDL}", f"{AGES} {AGES_DDL}"])
    return F.transform(F.collect_list("report"), lambda report: F.from_json(report, schema))
