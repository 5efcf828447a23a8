"""Completions of a stream: the plan around the stateful operator.

    messages -> blocks, combined by the task that has them -> one row a shard -> the operator -> completions
    ticks ------------------------------------------------------^

The operator's reports leave among its completions, are observed, and end there.
"""

from __future__ import annotations

import functools
import warnings
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.combiner import SHARDS_MAX, Cohorts, check_shards
from acker._engine.protocol import BUCKETS_MAX, BUCKETS_MIN, HIGH_WATER_MAX, PROTOCOLS, check_integer
from acker._engine.schemas import COMPLETION_SCHEMA
from acker.errors import ArgumentValueError
from acker.spark.blocks import place_of
from acker.spark.messages import EVENT_MS_MAX, check_options, check_timeout
from acker.spark.session_checks import PARTITIONS_CONF, check_streaming_session, versions
from acker.spark.streams.microbatch import Options
from acker.spark.streams.reports import DEFAULT_NAME, SHARDS, Report
from acker.spark.streams.rows import blocks_of_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_DEFAULT_PARTITIONS: Final = "200"
DEFAULT_DELAY: Final = "0 seconds"


def completions_of_stream(
    messages: DataFrame,
    types: dict[str, str],
    *,
    shards: int | None,
    timeout: str | float | None,
    protocol: str,
    buckets: int,
    high_water: int | None,
    event_time: str | None,
    watermark_delay: str,
    name: str,
) -> DataFrame:
    """Settle the messages of a streaming DataFrame whose columns have been checked; `acker.spark.completions`."""
    if event_time is not None:
        found = dict(messages.dtypes).get(event_time)
        if found is None or not (found.startswith("timestamp") or found == "bigint"):
            got = f"the columns {', '.join(messages.columns)}" if found is None else found
            raise ArgumentValueError(
                f"event_time: expected a column of timestamps or of bigint milliseconds, got {got}"
            )
    split = shards or default_shards(messages.sparkSession)
    return completions_from_block_stream(
        blocks_of_rows(
            messages, types, split, event_time, None if event_time is None else cohorts_of(timeout, buckets)
        ),
        shards=split,
        timeout=timeout,
        protocol=protocol,
        buckets=buckets,
        high_water=high_water,
        event_time=event_time is not None,
        watermark_delay=watermark_delay,
        name=name,
    )


def state_partitions(session: SparkSession) -> int:
    """Return into how many partitions Spark puts the state of a query that begins now."""
    return int(session.conf.get(PARTITIONS_CONF) or _DEFAULT_PARTITIONS)


def default_shards(session: SparkSession) -> int:
    """Return into how many shards the trees of a query are split that does not say: one a partition, if that may be."""
    return min(state_partitions(session), SHARDS_MAX)


def completions_from_block_stream(
    blocks: DataFrame,
    *,
    shards: int,
    timeout: str | float | None = None,
    protocol: str = "storm",
    buckets: int = 3,
    high_water: int | None = None,
    event_time: bool = False,
    watermark_delay: str = DEFAULT_DELAY,
    name: str = DEFAULT_NAME,
    unique_ids: bool = False,
) -> DataFrame:
    """Settle the blocks of a stream.

    Parameters
    ----------
    blocks : DataFrame
        A streaming one of ``shard int, block binary``, as `acker.spark.streams.rows.block_batches` makes them; with
        ``event_ms long`` where `event_time` is true.
    shards : int
        Into how many the blocks were split.
    timeout, protocol, buckets, high_water, watermark_delay, name
        As in `acker.spark.completions`.
    event_time : bool
        Let trees expire by the watermark of ``event_ms``.
    unique_ids : bool
        The messages are those of a pipeline: a tree with two TRACKs in one micro-batch ends the query.
    """
    session = blocks.sparkSession
    check_streaming_session(session)
    options = stream_options(
        shards=shards,
        partitions=state_partitions(session),
        timeout=timeout,
        protocol=protocol,
        buckets=buckets,
        high_water=high_water,
        event_time=event_time,
        unique_ids=unique_ids,
    )
    # Imported here, since it imports pandas, which a worker that only combines does not need.
    from acker.spark.streams.operator import OUTPUT_DDL, AckerProcessor

    if event_time:
        blocks = blocks.withColumn("event_time", F.timestamp_millis("event_ms")).withWatermark(
            "event_time", watermark_delay
        )
    rows = blocks.select("shard", "block")
    if not event_time:
        rows = rows.union(_ticks(session, shards))
    else:
        rows = _told(rows)
    processor = AckerProcessor(options, name, versions())
    produced = (
        rows.select(
            place_of(F.col("shard"), shards).alias("place"),
            "shard",
            "block",
            F.unix_millis(F.current_timestamp()).alias("clock_ms"),
        )
        .groupBy("place")
        .transformWithStateInPandas(processor, OUTPUT_DDL, "Append", "EventTime" if event_time else "None")
    )
    return (
        produced.observe(name, _reports().alias(SHARDS))
        .where(F.col("report").isNull())
        .select(*COMPLETION_SCHEMA.names)
    )


def stream_options(
    *,
    shards: int,
    partitions: int,
    timeout: str | float | None,
    protocol: str,
    buckets: int,
    high_water: int | None,
    event_time: bool,
    unique_ids: bool = False,
) -> Options:
    """Check what a streaming acker was asked for."""
    check_options(protocol, timeout, None)
    shards = check_shards(shards)
    buckets = check_integer("buckets", buckets, BUCKETS_MIN, BUCKETS_MAX)
    if high_water is not None:
        high_water = -(-check_integer("high_water", high_water, 0, HIGH_WATER_MAX) // shards)
    if timeout is None:
        _warn_of_no_timeout()
    return Options(
        shards=shards,
        partitions=partitions,
        timeout_ms=_timeout_ms(timeout, event_time=event_time),
        buckets=buckets,
        high_water=high_water,
        every_message_refreshes=protocol == PROTOCOLS[1],
        event_time=event_time,
        unique_ids=unique_ids,
    )


def _timeout_ms(timeout: str | float | None, *, event_time: bool) -> Fraction | None:
    """Return a timeout in milliseconds: of event times, which are whole ones, a whole number of at least one."""
    seconds = check_timeout(timeout)
    if seconds is None:
        return None
    exact = Fraction(seconds).limit_denominator(10**9) * 1000
    if not event_time:
        return exact
    if not 1 <= exact <= EVENT_MS_MAX:
        raise ArgumentValueError(f"timeout: by event time expected 1 millisecond to 8,000 years, got {timeout!r}")
    return Fraction(round(exact))


def cohorts_of(timeout: str | float | None, buckets: int) -> Cohorts:
    """Return how the event times of a stream are parted that asks for a timeout and so many buckets."""
    timeout_ms = _timeout_ms(timeout, event_time=True)
    buckets = check_integer("buckets", buckets, BUCKETS_MIN, BUCKETS_MAX)
    return Cohorts(0 if timeout_ms is None else int(timeout_ms), buckets)


@functools.cache
def _warn_of_no_timeout() -> None:
    """Warn once."""
    warnings.warn(
        "timeout: there is none, so a tree of which a message was lost is held for ever; give one, such as"
        " timeout='90 seconds'",
        UserWarning,
        stacklevel=5,
    )


def _told(rows: DataFrame) -> DataFrame:
    """Let shard 0 hear of each block, so that it notices a number of shards that is not the checkpoint's.

    The place of shard 0 is the same whatever their number. Where there are ticks, all shards hear of everything.
    """
    row, nothing = (
        F.struct("shard", "block"),
        F.struct(F.lit(0).alias("shard"), F.lit(None).cast("binary").alias("block")),
    )
    both = F.when(F.col("shard") == 0, F.array(row)).otherwise(F.array(row, nothing))
    return rows.select(F.explode(both).alias("row")).select("row.*")


def _ticks(session: SparkSession, shards: int) -> DataFrame:
    """Return a row for each shard in every micro-batch, so that trees time out where no message comes.

    It is there without a timeout too: a checkpoint holds how many sources its query has, and Spark lets no source come
    later, so a timeout that is given later would be none.

    A source of Spark's that has one row more whenever it is asked, so every trigger runs a micro-batch. Its trigger
    AvailableNow ends, which processing-time timers would not let it do, and takes what other sources have in as many
    micro-batches as they ask for, which the "rate" source would not let it do.
    """
    ticks = session.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
    every = F.explode(F.sequence(F.lit(0), F.lit(shards - 1)))
    return ticks.select(every.alias("shard"), F.lit(None).cast("binary").alias("block"))


def _reports() -> Column:
    """Return the reports of a micro-batch as an array of rows with names."""
    schema = ", ".join(f"{field} bigint" for field in Report._fields)
    return F.transform(F.collect_list("report"), lambda report: F.from_json(report, schema))
