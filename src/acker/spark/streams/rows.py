"""Blocks made from the rows of a streaming DataFrame, whose messages are combined in Python.

In a stream an aggregation in the JVM would be a second stateful operator, so the rows must cross. The cost depends on
the number of columns and on whether their types are alike, so four longs cross: kind and task id share one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.combiner import Combiner
from acker._files.columns import columns_of, event_times_of, latest_of
from acker.spark.blocks import BLOCKS_DDL, block_row, encode_blocks
from acker.spark.event_columns import check_event_column, event_ms_of
from acker.spark.versioned_pickle import pack_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column, DataFrame

    from acker._engine.combiner import Cohorts
    from acker.spark.options import CompletionOptions

# The shared long: the kind in the low bits, then flags for nulls, then the task id.
_TASK_SHIFT: Final = 16
_TASK_IS_NULL: Final = 1 << 9
_KIND_IS_NULL: Final = 1 << 8
_KIND_MASK: Final = 0xFF

# Blocks with the latest event time of their task, for the watermark.
TIMED_BLOCKS_DDL: Final = f"{BLOCKS_DDL}, event_ms long"


def blocks_of_rows(messages: DataFrame, types: dict[str, str], shards: int, options: CompletionOptions) -> DataFrame:
    """Return blocks of the messages in a DataFrame, made by the tasks that read it.

    Parameters
    ----------
    messages : DataFrame
    types : dict
        The Spark type of each column of messages.
    shards : int
    options : CompletionOptions
    """
    event_time, cohorts = options.event_time, options.cohorts
    kind, task = F.col("kind"), F.col("task_id")
    root, value, message = (F.col(name).cast("bigint") for name in ("root_id", "value", "message_id"))
    if (types["kind"], types["task_id"]) == ("tinyint", "int"):
        columns = [root, value, _pack_kind_and_task(kind, task).alias("packed"), message]
    else:
        columns = [root, value, kind.cast("bigint"), task.cast("bigint"), message]
    if event_time is not None:
        check_event_column(messages, event_time)
        columns.append(event_ms_of(messages, event_time).alias("event_ms"))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return combine_batches(batches, shards, cohorts)

    ddl = TIMED_BLOCKS_DDL if event_time else BLOCKS_DDL
    return messages.select(*columns).mapInArrow(pack_function(run, "combine"), ddl)


def _pack_kind_and_task(kind: Column, task: Column) -> Column:
    flags = F.when(task.isNull(), F.lit(_TASK_IS_NULL)).otherwise(F.lit(0))
    number = F.coalesce(kind.cast("bigint").bitwiseAND(F.lit(_KIND_MASK)), F.lit(_KIND_IS_NULL))
    return F.shiftleft(F.coalesce(task, F.lit(0)).cast("bigint"), _TASK_SHIFT).bitwiseOR(number).bitwiseOR(flags)


def combine_batches(
    batches: Iterator[pa.RecordBatch], shards: int, cohorts: Cohorts | None = None
) -> Iterator[pa.RecordBatch]:
    """Combine the messages of one task and yield one block a row; runs in Spark's Python workers.

    With `cohorts` the input has a column of event times, and so has the output. The plan decides, since a task without
    any batch could not know.
    """
    combiner = Combiner(resets=True, cohorts=cohorts)
    latest_ms: int | None = None
    for batch in batches:
        event_ms = None
        if cohorts is not None:
            event_ms = event_times_of(batch.column("event_ms"), "event_time", _describe_row)
            latest_ms = latest_of(latest_ms, event_ms)
        combiner.add_unchecked(columns_of(_unpack(batch), _describe_row), event_ms)
    yield from block_batches(combiner, shards, timed=cohorts is not None, event_ms=latest_ms)


def block_batches(
    combiner: Combiner, shards: int, *, timed: bool, event_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the content of a combiner as blocks, one a row; if `timed`, with the latest event time in ms."""
    for shard, block in encode_blocks(combiner, shards, event_ms):
        row = block_row(shard, block)
        yield row.append_column("event_ms", pa.array([event_ms], pa.int64())) if timed else row


def _unpack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the five columns of messages."""
    if "packed" not in batch.schema.names:
        return batch
    packed = batch.column("packed").to_numpy()
    low = packed & ((1 << _TASK_SHIFT) - 1)
    kinds = (low & _KIND_MASK).astype(np.int8)
    kind_is_null, task_is_null = low & _KIND_IS_NULL != 0, low & _TASK_IS_NULL != 0
    kind = pa.array(kinds, mask=kind_is_null) if kind_is_null.any() else pa.array(kinds)
    tasks = (packed >> _TASK_SHIFT).astype(np.int32)
    task = pa.array(tasks, mask=task_is_null) if task_is_null.any() else pa.array(tasks)
    columns: dict[str, pa.Array[Any]] = {"kind": kind, "task_id": task}
    columns |= {name: batch.column(name) for name in ("root_id", "value", "message_id")}
    return pa.RecordBatch.from_pydict(columns)


_describe_row: Callable[[int], str] = "messages, row {} of an Arrow batch".format
