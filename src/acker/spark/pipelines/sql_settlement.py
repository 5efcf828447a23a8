"""Completions of pipelines whose every step Spark's SQL runs: an aggregation by root id, without Python."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.
from pyspark.sql.types import LongType

from acker._engine.protocol import Outcome
from acker.spark.messages import SHARED_TREE, describe_collision
from acker.spark.pipelines.hidden_columns import FAILED, ID, MORE, ROOT, TASK, VALUE
from acker.spark.pipelines.sql_rows import trees_of_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def settle_sql_rows(frames: list[DataFrame], *, include_pending: bool, may_fail: bool) -> DataFrame:
    """Settle the messages of the rows of a batch; the columns are those of a pipeline's completions.

    Parameters
    ----------
    may_fail : bool
        Whether any step fails rows. Spark sorts rows where it aggregates texts, so only then are there any.
    """
    parts = [_messages_of(frame, may_fail=may_fail) for frame in frames]
    has_numbers = parts[0].schema[ID].dataType == LongType()
    messages = functools.reduce(lambda one, other: one.union(other), parts)
    failed = [F.min(FAILED).alias(FAILED)] if may_fail else []
    trees = messages.groupBy(ROOT).agg(
        F.bit_xor(VALUE).alias(VALUE),
        F.count(ID).alias("tracks"),
        F.max(ID).alias(ID),
        # Numbers cannot share a hash, as texts may.
        *([] if has_numbers else [F.min(ID).alias("other_id")]),
        F.max(TASK).alias(TASK),
        *failed,
    )
    other = F.col(ID if has_numbers else "other_id")
    refuse = _refuse_shared(F.col(ID) == other, other.cast("string"))
    is_acked = F.col(VALUE) == 0
    is_failed = F.col(FAILED).isNotNull() if may_fail else F.lit(False)
    outcome = F.when(is_acked, int(Outcome.ACKED)).when(is_failed, int(Outcome.FAILED)).otherwise(int(Outcome.PENDING))
    is_reported = F.lit(True) if include_pending else is_acked | is_failed
    done = trees.where((F.col("tracks") > 0) & F.when(F.col("tracks") > 1, refuse).otherwise(is_reported))
    fault = F.when(is_acked, F.lit(None)).otherwise(F.col(FAILED)) if may_fail else F.lit(None)
    return done.select(
        F.col(ROOT).alias("root_id"),
        F.col(ID).alias("message_id"),
        F.col(TASK).alias("task_id"),
        outcome.cast("tinyint").alias("outcome"),
        F.lit(0).cast("bigint").alias("elapsed_ms"),
        *((fault.getField(name) if may_fail else fault).cast("string").alias(name) for name in ("component", "reason")),
    )


def _messages_of(frame: DataFrame, *, may_fail: bool) -> DataFrame:
    """Return the rows with messages, and of them what an outcome needs."""
    if MORE in frame.columns:
        frame = frame.select(FAILED, F.inline(trees_of_rows()))
    says = F.col(ROOT).isNotNull() & ((F.col(VALUE) != 0) | F.col(ID).isNotNull())
    columns = [F.col(name) for name in (ROOT, VALUE, ID, TASK)]
    if may_fail:
        columns.append(F.col(FAILED))
        says |= F.col(FAILED).isNotNull()
    return frame.where(says).select(*columns)


def _refuse_shared(is_same: Column, other: Column) -> Column:
    """Return the error of a tree that several rows have."""
    one = F.col(ID).cast("string")
    known = f"message_id: %s rows of one batch have the message id %s. {SHARED_TREE}"
    collision = F.format_string(f"message_id: {describe_collision('%s', '%s')}".replace("'%s'", "%s"), one, other)
    text = F.when(is_same, F.format_string(known, F.col("tracks"), one)).otherwise(collision)
    return F.raise_error(text).cast("boolean")
