"""Completions of a DataFrame's messages, by Spark's own plan: aggregated per root, settled in expressions.

A row that crosses into Python costs as much as Spark takes to aggregate it, so none does. All aggregates keep numbers
of fixed width, so that Spark uses its hash aggregate: a minimum of a struct would make it sort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.protocol import INT32_MAX, Kind, Outcome
from acker.spark.messages import FIELDS, Field, check_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_INTEGERS = ("tinyint", "smallint", "int", "bigint")


def completions(
    messages: DataFrame,
    *,
    shards: int | None = None,
    timeout: str | float | None = None,
    protocol: str = "storm",
    include_pending: bool = False,
) -> DataFrame:
    """Settle the messages in a DataFrame, all of them taken as one set.

    Parameters
    ----------
    messages : DataFrame
        A batch one, with the columns of `acker.MESSAGE_SCHEMA` by name; further ones are ignored. Integers of another
        width are converted when no value changes. task_id and message_id may be null where no row is a TRACK.
    shards : int, 1 to 65536, optional
        Checked and of no effect here: Spark's shuffle partitions decide. See `completions_from_files`.
    timeout : str or number, optional
        "90 seconds", or seconds above 0. Checked and of no effect: in a batch nothing times out.
    protocol : {"storm", "storm-0.9"}
        The same for a set of messages. "fsshelter" needs an order.
    include_pending : bool
        Report the trees that are still open too, with outcome PENDING.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row a tree that had a TRACK and is finished; `elapsed_ms` is 0.
        Nothing runs before an action. Messages of one tree may lie in any partitions, in any order.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        What is wrong with an argument; a streaming DataFrame.
    ColumnTypeError, ColumnValueError
        A column that is missing or does not hold integers. A bad value in a row fails the job with an error that names
        the column and the root id.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> done = aspark.completions(spark.read.parquet("messages"))                                       # doctest: +SKIP
    >>> done.groupBy("outcome").count().show()                                                          # doctest: +SKIP
    """
    check_options(protocol, timeout, shards)
    if not hasattr(messages, "isStreaming") or not hasattr(messages, "schema"):
        raise ArgumentTypeError(f"messages: expected a DataFrame, got {type(messages).__name__}")
    if messages.isStreaming:
        raise ArgumentValueError("messages: streaming is not supported in this version; expected a batch DataFrame")
    types = _check_schema(messages.schema)
    return _settle(_gather(messages, types), include_pending=include_pending)


def _check_schema(schema: StructType) -> dict[str, str]:
    """Return the Spark type of each column of messages."""
    types = {}
    for field in FIELDS:
        found = [entry.dataType.simpleString() for entry in schema.fields if entry.name == field.name]
        if len(found) != 1:
            got = f"{len(found)} columns of that name" if found else f"the columns {', '.join(schema.names)}"
            raise ColumnValueError(f"{field.name}: expected a column of {field.spark_type}, got {got}")
        if found[0] not in _INTEGERS:
            raise ColumnTypeError(f"{field.name}: expected {field.spark_type}, got {found[0]}")
        types[field.name] = found[0]
    return types


def _gather(messages: DataFrame, types: dict[str, str]) -> DataFrame:
    """Aggregate per root: the xor of OK and ANCHOR values, the TRACK of least rank, and whether there was a FAIL."""
    kind, root_id, value, task_id, message_id = (F.col(field.name) for field in FIELDS)
    wide = "bigint"
    root_id, value, message_id = (
        column if types[name] == wide else column.cast(wide)
        for name, column in (("root_id", root_id), ("value", value), ("message_id", message_id))
    )
    task = task_id if types["task_id"] == "int" else task_id.try_cast("int")  # out of range is told in our words
    is_track = kind == int(Kind.TRACK)
    # `acker.protocol.track_rank`. Null where there is no TRACK, so that min and min_by pass the row over.
    rank = F.when(is_track, value.bitwiseXOR(F.xxhash64(task, message_id)))
    return messages.groupBy(root_id.alias("root_id")).agg(
        F.bit_xor(_checked_value(kind, root_id, value, task_id, message_id)).alias("value"),
        F.min(rank).alias("rank"),
        F.min_by(task, rank).alias("task_id"),
        F.min_by(message_id, rank).alias("message_id"),
        F.max(kind == int(Kind.FAIL)).alias("failed"),
    )


def _checked_value(kind: Column, root_id: Column, value: Column, task_id: Column, message_id: Column) -> Column:
    """Return what a row adds to its tree's xor: null but for OK and ANCHOR. A row that is not legal fails the job.

    The checks live in the branches of one expression that every row evaluates anyway; what is wrong is only found out
    in the last one.
    """
    nothing = F.lit(None).cast("bigint")
    task_is_legal = task_id.isNull() | task_id.between(0, INT32_MAX)
    is_legal = root_id.isNotNull() & value.isNotNull()
    return (
        F.when(kind.isin(int(Kind.OK), int(Kind.ANCHOR)) & is_legal & task_is_legal, value)
        .when(
            (kind == int(Kind.TRACK)) & is_legal & task_id.between(0, INT32_MAX) & message_id.isNotNull(),
            nothing,
        )
        .when(kind.isin(int(Kind.FAIL), int(Kind.RESET_TIMEOUT)) & is_legal & task_is_legal, nothing)
        .otherwise(F.raise_error(_complaint(kind, root_id, value, task_id, message_id)).cast("bigint"))
    )


def _complaint(kind: Column, root_id: Column, value: Column, task_id: Column, message_id: Column) -> Column:
    """Return the text of the error for a row that is not legal: the first column at fault, and the root id."""
    columns = {"kind": kind, "root_id": root_id, "value": value, "task_id": task_id, "message_id": message_id}

    def text(field: Field, suffix: str = "") -> Column:
        got = F.coalesce(columns[field.name].cast("string"), F.lit("null"))
        root = F.coalesce(root_id.cast("string"), F.lit("null"))
        begin = f"{field.name}: expected {field.expected}{suffix}, got "
        return F.concat(F.lit(begin), got, F.lit(" (root id "), root, F.lit(")"))

    fields = {field.name: field for field in FIELDS}
    is_track = kind == int(Kind.TRACK)
    return (
        F.when(kind.isNull() | ~kind.between(min(Kind), max(Kind)), text(fields["kind"]))
        .when(root_id.isNull(), text(fields["root_id"]))
        .when(value.isNull(), text(fields["value"]))
        .when(is_track & task_id.isNull(), text(fields["task_id"], " for a TRACK"))
        .when(~task_id.between(0, INT32_MAX), text(fields["task_id"]))
        .otherwise(text(fields["message_id"], " for a TRACK"))
    )


def _settle(trees: DataFrame, *, include_pending: bool) -> DataFrame:
    """Judge each tree that had a TRACK."""
    task_id, message_id = F.col("task_id"), F.col("message_id")
    track_value = F.col("rank").bitwiseXOR(F.xxhash64(task_id, message_id))
    is_acked = F.coalesce(F.col("value"), F.lit(0)) == track_value
    outcome = (
        F.when(is_acked, int(Outcome.ACKED)).when(F.col("failed"), int(Outcome.FAILED)).otherwise(int(Outcome.PENDING))
    )
    known = trees.where(F.col("rank").isNotNull())
    done = known if include_pending else known.where(is_acked | F.col("failed"))
    return done.select(
        "root_id",
        message_id,
        task_id,
        outcome.cast("tinyint").alias("outcome"),
        F.lit(0).cast("bigint").alias("elapsed_ms"),
    )
