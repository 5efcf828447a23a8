"""Completions of a DataFrame's messages. Of a batch by Spark's own plan: aggregated per root, settled in expressions.

A row that crosses into Python costs as much as Spark takes to aggregate it, so none does. All aggregates keep numbers
of fixed width, so that Spark uses its hash aggregate: a minimum of a struct would make it sort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.protocol import INT32_MAX, Kind, Outcome
from acker._engine.schemas import MESSAGE_COLUMNS
from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.spark.messages import SPARK_TYPES, check_options

if TYPE_CHECKING:
    from collections.abc import Callable

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
    buckets: int = 3,
    high_water: int | None = None,
    event_time: str | None = None,
    watermark_delay: str = "0 seconds",
    name: str = "acker",
) -> DataFrame:
    """Settle the messages in a DataFrame: of a batch one all as one set, of a streaming one each micro-batch as a set.

    Parameters
    ----------
    messages : DataFrame
        With the columns of `acker.MESSAGE_SCHEMA` by name; further ones are ignored. Integers of another width are
        converted when no value changes. task_id and message_id may be null where no row is a TRACK.
    shards : int, 1 to 1024, optional
        Streaming: into how many parts the trees are split; by default as many as Spark's shuffle partitions,
        at most 1024. The checkpoint keeps it. Batch: of no effect, Spark's shuffle partitions decide.
    timeout : str or number, optional
        "90 seconds", or seconds above 0. None: a tree waits for ever, and a stream warns of it.
    protocol : {"storm", "storm-0.9"}
        The same for one set of messages. "fsshelter" needs an order.
    include_pending : bool
        Batch only: report the trees that are still open too, with outcome PENDING.
    buckets : int, 2 to 15
        A tree times out after more than `timeout` and at most ``timeout * buckets / (buckets - 1)``.
    high_water : int >= 0, optional
        Bounds the state, each shard having an equal part of it: while more than twice as many tracked trees are held, a
        TRACK of a tree that its micro-batch does not finish is answered REJECTED. None: no limit.
    event_time : str, optional
        A column of timestamps, or of bigint milliseconds, null nowhere: each message stands at its own time, and trees
        expire by the watermark instead of by the clock.
    watermark_delay : str
        How far behind the latest event time the watermark is.
    name : str
        Of the observation that says what each shard did; the ackers of one query need different ones.

    Returns
    -------
    DataFrame
        Columns of `acker.COMPLETION_SCHEMA`, one row a tree that had a TRACK and is finished. Messages of one tree may
        lie in any partitions, in any order. Batch: `elapsed_ms` is 0, nothing times out, and nothing runs before an
        action; the options below `include_pending` have no effect. Streaming: see docs/streaming.md.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        What is wrong with an argument.
    SessionError
        The session cannot run a streaming acker; it says what to do.
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
        raise ArgumentTypeError(
            f"messages: expected a DataFrame of PySpark, got {type(messages).__module__}.{type(messages).__qualname__}"
        )
    types = _check_schema(messages.schema)
    if messages.isStreaming:
        if include_pending:
            raise ArgumentValueError("include_pending: a stream has no end at which trees could be pending")
        # Imported here, since it asks for packages that a batch does not need.
        from acker.spark.streams.plan import completions_of_stream

        return completions_of_stream(
            messages,
            types,
            shards=shards,
            timeout=timeout,
            protocol=protocol,
            buckets=buckets,
            high_water=high_water,
            event_time=event_time,
            watermark_delay=watermark_delay,
            name=name,
        )
    return _settle(_gather(messages, types), include_pending=include_pending)


def _check_schema(schema: StructType) -> dict[str, str]:
    """Return the Spark type of each column of messages."""
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


def _gather(messages: DataFrame, types: dict[str, str]) -> DataFrame:
    """Aggregate per root: the xor of OK and ANCHOR values, the TRACK of least rank, and whether there was a FAIL."""
    kind, root_id, value, task_id, message_id = (F.col(field.name) for field in MESSAGE_COLUMNS)
    wide = "bigint"
    root_id, value, message_id = (
        column if types[name] == wide else column.cast(wide)
        for name, column in (("root_id", root_id), ("value", value), ("message_id", message_id))
    )
    task = task_id if types["task_id"] == "int" else task_id.try_cast("int")  # out of range is told in our words

    def is_task_id(number: Column) -> Column:
        return (number >= 0) & (number <= INT32_MAX) if types["task_id"] == "bigint" else number >= 0

    complaint = _complaint(kind, root_id, value, task_id, message_id, is_task_id)
    is_track = kind == int(Kind.TRACK)
    # `acker._engine.protocol.track_rank`. Null where there is no TRACK, so that min and min_by pass the row over.
    rank = F.when(is_track, value.bitwiseXOR(F.xxhash64(task, message_id)))
    # A projection of its own: bit_xor and min_by evaluate what they are given up to three times a row.
    rows = messages.select(
        root_id.alias("root_id"),
        _checked_value(kind, value, task_id, message_id, is_task_id, complaint).alias("value"),
        rank.alias("rank"),
        task.alias("task_id"),
        message_id.alias("message_id"),
        (kind == int(Kind.FAIL)).alias("failed"),
    )
    # Without the filters every row would write all numbers of its tree anew, and most rows change but one of them. The
    # xor has none: it evaluates the value of every row, and so the checks.
    track, fail = "filter (where rank is not null)", "filter (where failed)"
    return rows.groupBy("root_id").agg(
        F.bit_xor("value").alias("value"),
        F.expr(f"min(rank) {track}").alias("rank"),
        F.expr(f"min_by(task_id, rank) {track}").alias("task_id"),
        F.expr(f"min_by(message_id, rank) {track}").alias("message_id"),
        F.expr(f"max(failed) {fail}").alias("failed"),
    )


def _checked_value(
    kind: Column,
    value: Column,
    task_id: Column,
    message_id: Column,
    is_task_id: Callable[[Column], Column],
    complaint: Column,
) -> Column:
    """Return what a row adds to its tree's xor: null but for OK and ANCHOR. A row that is not legal fails the job.

    The checks live in the branches of one expression that every row evaluates anyway; only the last one, which no legal
    row reaches, finds out what is wrong. What is left out here is told by `_settle`: a root id that is null.
    """
    nothing = F.lit(None).cast("bigint")
    # null is legal here, and reads 0.
    others_task_is_legal = is_task_id(F.coalesce(task_id, F.lit(0)))
    return (
        F.when(kind.isin(int(Kind.OK), int(Kind.ANCHOR)) & others_task_is_legal & value.isNotNull(), value)
        .when(
            (kind == int(Kind.TRACK)) & is_task_id(task_id) & message_id.isNotNull() & value.isNotNull(),
            nothing,
        )
        .when(kind.isin(int(Kind.FAIL), int(Kind.RESET_TIMEOUT)) & others_task_is_legal & value.isNotNull(), nothing)
        .otherwise(F.raise_error(complaint).cast("bigint"))
    )


def _complaint(
    kind: Column,
    root_id: Column,
    value: Column,
    task_id: Column,
    message_id: Column,
    is_task_id: Callable[[Column], Column],
) -> Column:
    """Return the text of the error for a row that is not legal: the first column at fault, and the root id.

    One format and no more: the JVM does not compile a method of over 8,000 bytes of code, and this is part of the
    aggregate's.
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
    is_told = F.col("rank").isNotNull()
    if not include_pending:
        is_told &= is_acked | F.col("failed")
    # Rows without a root id are a group like any other until here, where there is one row for all of them.
    no_root = F.raise_error(F.lit("root_id: expected int64, got null (root id null)")).cast("boolean")
    done = trees.where(F.when(F.col("root_id").isNull(), no_root).otherwise(is_told))
    return done.select(
        "root_id",
        message_id,
        task_id,
        outcome.cast("tinyint").alias("outcome"),
        F.lit(0).cast("bigint").alias("elapsed_ms"),
    )
