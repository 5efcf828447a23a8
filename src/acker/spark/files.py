"""Files of messages, which Spark's Python workers read, combine by root and send as blocks.

No message row enters the JVM, and what one task combines needs no shuffle.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from acker._engine.combiner import SHARDS_MAX, Cohorts, Combiner
from acker._engine.protocol import divide_up
from acker._files.columns import columns_of, event_times_of, latest_of
from acker._files.paths import list_files
from acker._files.reader import Unit, deal, inspect_files, read_units
from acker.spark.blocks import BLOCKS_DDL, block_row, encode_blocks
from acker.spark.hadoop import opener_of
from acker.spark.versioned_pickle import pack_function

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Bounds the memory of a worker; more tasks than cores do no harm.
_TASK_MESSAGES_MAX: Final = 16_000_000
# A combiner with more roots than this is written out as blocks.
_TASK_ROOTS_MAX: Final = 4_000_000
# Makes Spark read all files in the directory of a file sink.
_IGNORE_LOGS_CONF: Final = "spark.sql.streaming.fileStreamSink.ignoreMetadata"


def blocks_of_files(
    spark: SparkSession, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], shards: int | None
) -> tuple[DataFrame, int]:
    """Return a DataFrame of the blocks of files, and the number of shards into which they are split.

    Parameters
    ----------
    spark : SparkSession
    paths : path or paths
    shards : int, optional
        By default the larger of the session's parallelism and one shard for 16 million messages.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
        See `acker.spark.completions_from_files`.
    """
    files = list_files(paths, logs=follows_logs(spark), open_uri=opener_of(spark))
    units = inspect_files(files)
    messages = sum(unit.messages for unit in units)
    needed = max(parallelism_of(spark), divide_up(messages, _TASK_MESSAGES_MAX))
    split = shards or min(needed, SHARDS_MAX)
    work = deal(units, needed)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_numpy():
                yield from combine_units(work[task], split)

    return spark.range(0, len(work), 1, len(work)).mapInArrow(pack_function(run, "read"), BLOCKS_DDL), split


def combine_units(units: list[Unit], shards: int) -> Iterator[pa.RecordBatch]:
    """Read some units, combine their messages, and yield one block a row; runs in Spark's Python workers."""
    for combiner, _ in gather_units(units):
        for shard, block in encode_blocks(combiner, shards):
            yield block_row(shard, block)


def gather_units(
    units: Iterable[Unit], *, resets: bool = False, event_time: str | None = None, cohorts: Cohorts | None = None
) -> Iterator[tuple[Combiner, int | None]]:
    """Read some units; yield their messages combined, with the latest event time so far, once or in several parts.

    Only the number of roots decides on the parts, so that a task with many files stays within its memory.

    Parameters
    ----------
    units : iterable of Unit
    resets : bool
        Keep RESET_TIMEOUTs, as streams do.
    event_time : str, optional
        The column of event times; `cohorts` says how these are split.
    cohorts : Cohorts, optional
    """
    combiner = Combiner(resets=resets, cohorts=cohorts)
    latest_ms: int | None = None
    for batch, locate in read_units(units, event_time):
        event_ms = None
        if event_time is not None:
            event_ms = event_times_of(batch.column(event_time), event_time, locate)
            latest_ms = latest_of(latest_ms, event_ms)
        combiner.add_unchecked(columns_of(batch, locate), event_ms)
        if len(combiner) > _TASK_ROOTS_MAX:
            yield combiner, latest_ms
            combiner = Combiner(resets=resets, cohorts=cohorts)
    yield combiner, latest_ms


def follows_logs(spark: SparkSession) -> bool:
    """Return whether to follow the logs of file sinks, which an option of Spark turns off."""
    return spark.conf.get(_IGNORE_LOGS_CONF, "false") != "true"


def parallelism_of(spark: SparkSession) -> int:
    """Return the number of tasks that run at once."""
    try:
        return max(int(spark.sparkContext.defaultParallelism), 1)
    except PySparkException:  # A session of Spark Connect has no context.
        return max(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), 1)
