"""Completions of a batch of rows by Spark SQL alone: an aggregation by root id, settled in expressions.

A row that crosses into Python costs as much as aggregating it in Spark, so none does. All aggregates are numbers of
fixed width, for which Spark uses its hash aggregate; a minimum of a struct would make it sort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.protocol import INT32_MAX, Kind, Outcome
from acker._engine.schemas import MESSAGE_COLUMNS
from acker.errors import ColumnTypeError, ColumnValueError
from acker.spark.messages import SPARK_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_INTEGERS = ("tinyint", "smallint", "int", "bigint")


def aggregate_completions(messages: DataFrame, types: dict[str, str], *, include_pending: bool) -> DataFrame:
    """Settle the messages of a batch whose columns have been checked.

    Parameters
    ----------
    messages : DataFrame
    types : dict
        The Spark type of each column of messages: `check_message_columns`.
    include_pending : bool
    """
    return _settle(_group_by_root(messages, types), include_pending=include_pending)


def check_message_columns(schema: StructType) -> dict[str, str]:
    """Check that a schema has the columns of messages, and return the Spark type of each."""
    types = {}
    for field in MESSAGE_COLUMNS:
        spark_type = SPARK_TYPES[field.dtype.name]
        found = [entry.dataType.simpleString() for entry in schema.fields if entry.name == field.name]
        if len(found) != 1:
            got = f"{len(found)} columns of that name" if found else f"the columns {', '.join(schema.names)}"
            raise ColumnValueError(f"{field.name}: expected a column of {spark_type}, got {got}")
        if found[0] not in _INTEGERS:
            raise ColumnTypeError(f"{field.name}: expected {spark_type}, got {found[0]}")
        types[field.name] = found[0]
    return types


def _group_by_root(messages: DataFrame, types: dict[str, str]) -> DataFrame:
    """Aggregate per root: the xor of OK and ANCHOR values, the TRACK of least rank, and whether there was a FAIL."""
    kind, root_id, value, task_id, message_id = (F.col(field.name) for field in MESSAGE_COLUMNS)
    wide = "bigint"
    root_id, value, message_id = (
        column if types[name] == wide else column.cast(wide)
        for name, column in (("root_id", root_id), ("value", value), ("message_id", message_id))
    )
    task = (
        task_id if types["task_id"] == "int" else task_id.try_cast("int")
    )  # The error of a number out of range is ours.

    def is_task_id(number: Column) -> Column:
        return (number >= 0) & (number <= INT32_MAX) if types["task_id"] == "bigint" else number >= 0

    error_text = _error_text(kind, root_id, value, task_id, message_id, is_task_id)
    is_track = kind == int(Kind.TRACK)
    # Of several TRACKs the one of least rank counts (docs/protocol.md). Null without a TRACK: min and min_by skip it.
    rank = F.when(is_track, value.bitwiseXOR(F.xxhash64(task, message_id)))
    # A projection first: bit_xor and min_by evaluate their arguments up to three times a row.
    rows = messages.select(
        root_id.alias("root_id"),
        _value_or_error(kind, value, task_id, message_id, is_task_id, error_text).alias("value"),
        rank.alias("rank"),
        task.alias("task_id"),
        message_id.alias("message_id"),
        (kind == int(Kind.FAIL)).alias("failed"),
    )
    # Without the filters every row would write all numbers of its tree, though most rows change one. The xor has none:
    # it evaluates the value of every row, and with it the checks.
    track, fail = "filter (where rank is not null)", "filter (where failed)"
    return rows.groupBy("root_id").agg(
        F.bit_xor("value").alias("value"),
        F.expr(f"min(rank) {track}").alias("rank"),
        F.expr(f"min_by(task_id, rank) {track}").alias("task_id"),
        F.expr(f"min_by(message_id, rank) {track}").alias("message_id"),
        F.expr(f"max(failed) {fail}").alias("failed"),
    )


def _value_or_error(
    kind: Column,
    value: Column,
    task_id: Column,
    message_id: Column,
    is_task_id: Callable[[Column], Column],
    error_text: Column,
) -> Column:
    """Return what a row adds to its tree's xor: null but for OK and ANCHOR. A row that is not legal fails the job.

    The checks are the branches of one expression that every row evaluates anyway; only the last branch, which no legal
    row reaches, finds out what is wrong. `_settle` refuses a root id that is null.
    """
    nothing = F.lit(None).cast("bigint")
    # Null is legal here, and reads 0.
    others_task_is_legal = is_task_id(F.coalesce(task_id, F.lit(0)))
    return (
        F.when(kind.isin(int(Kind.OK), int(Kind.ANCHOR)) & others_task_is_legal & value.isNotNull(), value)
        .when(
            (kind == int(Kind.TRACK)) & is_task_id(task_id) & message_id.isNotNull() & value.isNotNull(),
            nothing,
        )
        .when(kind.isin(int(Kind.FAIL), int(Kind.RESET_TIMEOUT)) & others_task_is_legal & value.isNotNull(), nothing)
        .otherwise(F.raise_error(error_text).cast("bigint"))
    )


def _error_text(
    kind: Column,
    root_id: Column,
    value: Column,
    task_id: Column,
    message_id: Column,
    is_task_id: Callable[[Column], Column],
) -> Column:
    """Return the text of the error for a row that is not legal: the first column at fault, and the root id.

    Only one format: it is part of the aggregate's method, and the JVM compiles none of over 8,000 bytes of code.
    """
    is_track = kind == int(Kind.TRACK)
    fields = {field.name: field for field in MESSAGE_COLUMNS}
    faults = (
        (fields["kind"], kind.isNull() | ~kind.between(min(Kind), max(Kind)), ""),
        (fields["root_id"], root_id.isNull(), ""),
        (fields["value"], value.isNull(), ""),
        (fields["task_id"], is_track & task_id.isNull(), " for a TRACK"),
        (fields["task_id"], ~is_task_id(task_id), ""),
        (fields["message_id"], F.lit(True), " for a TRACK"),
    )
    texts = [f"{field.name}: expected {field.expected}{suffix}" for field, _, suffix in faults]
    columns = {"kind": kind, "root_id": root_id, "value": value, "task_id": task_id, "message_id": message_id}
    found = [columns[field.name].cast("bigint") for field, _, _ in faults]
    which = F.lit(len(faults))
    for number, (_, is_at_fault, _) in reversed(list(enumerate(faults, 1))):
        which = F.when(is_at_fault, F.lit(number)).otherwise(which)
    text, got = F.element_at(F.array(*map(F.lit, texts)), which), F.element_at(F.array(*found), which)
    return F.format_string("%s, got %s (root id %s)", text, got, root_id)


def _settle(trees: DataFrame, *, include_pending: bool) -> DataFrame:
    """Judge each tree that had a TRACK."""
    task_id, message_id = F.col("task_id"), F.col("message_id")
    track_value = F.col("rank").bitwiseXOR(F.xxhash64(task_id, message_id))
    is_acked = F.coalesce(F.col("value"), F.lit(0)) == track_value
    outcome = (
        F.when(is_acked, int(Outcome.ACKED)).when(F.col("failed"), int(Outcome.FAILED)).otherwise(int(Outcome.PENDING))
    )
    is_reported = F.col("rank").isNotNull()
    if not include_pending:
        is_reported &= is_acked | F.col("failed")
    # Rows without a root id are a group like any other until here, where one row is left of them.
    no_root = F.raise_error(F.lit("root_id: expected int64, got null (root id null)")).cast("boolean")
    done = trees.where(F.when(F.col("root_id").isNull(), no_root).otherwise(is_reported))
    return done.select(
        "root_id",
        message_id,
        task_id,
        outcome.cast("tinyint").alias("outcome"),
        F.lit(0).cast("bigint").alias("elapsed_ms"),
    )
