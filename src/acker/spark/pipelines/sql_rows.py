"""Steps of a tracked pipeline that Spark's SQL runs: DataFrames whose rows carry trees and messages in plain columns.

See `acker.spark.pipelines.hidden_columns` for the columns. Each function takes such a DataFrame and returns another.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker._engine.protocol import INT32_MAX
from acker._files.columns import EVENT_MS_MAX, EVENT_MS_MIN
from acker.spark.event_columns import event_ms_of
from acker.spark.messages import quote_column
from acker.spark.pipelines.hidden_columns import (
    ALIVE,
    ATTEMPT,
    BLOCK,
    EVENT_MS,
    FAILED,
    FAILED_DDL,
    ID,
    KEPT,
    MATCHES,
    OF_MESSAGE,
    ORDINAL,
    PARENT,
    RESERVED,
    ROOT,
    SHARD,
    SQL_HIDDEN,
    TASK,
    TUPLE,
    VALUE,
)
from acker.spark.pipelines.sql_ids import sql_root_ids, sql_tuple_ids
from acker.spark.pipelines.transforms import ROW_CHARS_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from acker.spark.pipelines.transforms import SpoutTransform


# The other side's row of a join, until its fields are columns.
_MATCH = "acker_match"


def user_columns(frame: DataFrame) -> list[str]:
    """Return the names of the user's columns."""
    return [name for name in frame.columns if name not in RESERVED and not name.startswith(MATCHES)]


def columns_of(names: Sequence[str]) -> list[Column]:
    """Return the columns with these names."""
    return [F.col(quote_column(name)) for name in names]


def _change(frame: DataFrame, users: Sequence[Column], **changed: Column) -> DataFrame:
    """Return these columns of the user, and the hidden ones, some of them with other values."""
    hidden = [name for name in (*SQL_HIDDEN, EVENT_MS) if name in frame.columns]
    return frame.select(*users, *(changed.get(name, F.col(name)).alias(name) for name in hidden))


def begin_trees(frame: DataFrame, spout: SpoutTransform, ids: str, event_time: str | None) -> DataFrame:
    """Begin a tree for each row, as `SpoutTransform` does."""
    message_id = F.col(quote_column(spout.message_id))
    is_tracked = message_id.isNotNull()

    def number_of(name: str | int) -> Column:
        if isinstance(name, int):
            return F.lit(name).cast("bigint")
        fault = F.lit(f"{name}: null in a row whose {spout.message_id} is not")
        column = F.col(quote_column(name))
        return F.when(column.isNotNull(), column.cast("bigint")).otherwise(F.raise_error(fault).cast("bigint"))

    task = number_of(spout.task_id)
    if isinstance(spout.task_id, str):
        fault = F.concat(F.lit(f"{spout.task_id}: expected int32 >= 0 in each row, got "), task.cast("string"))
        task = F.when(task.between(0, INT32_MAX), task).otherwise(F.raise_error(fault).cast("bigint"))
    number = message_id.cast("bigint") if ids == "bigint" else F.xxhash64(message_id)
    source = None if spout.source is None else number_of(spout.source)
    attempt = number_of(spout.attempt)
    has_attempts = isinstance(spout.attempt, str) or spout.attempt != 0
    root_id = sql_root_ids(spout.run_seed, source, number, attempt, spout.component)
    users = columns_of(frame.columns)
    rooted = frame.select(
        *users,
        F.lit(True).alias(ALIVE),
        F.when(is_tracked, root_id).alias(ROOT),
        (message_id.cast("bigint") if ids == "bigint" else message_id).alias(ID),
        F.when(is_tracked, task.cast("int")).alias(TASK),
        (F.when(is_tracked, attempt) if has_attempts else F.lit(None).cast("bigint")).alias(ATTEMPT),
        *([] if event_time is None else [_event_ms(frame, spout, event_time, is_tracked).alias(EVENT_MS)]),
    )
    tuple_id = sql_tuple_ids(spout.run_seed, F.col(ROOT), 0, spout.component, 0)
    begun = rooted.withColumn(TUPLE, F.when(F.col(ROOT).isNotNull(), tuple_id))
    nothing = {FAILED: F.lit(None).cast(FAILED_DDL), SHARD: F.lit(None).cast("int"), BLOCK: F.lit(None).cast("binary")}
    whole = begun.withColumns({VALUE: F.col(TUPLE), **nothing})
    return _change(whole, users)


def _event_ms(frame: DataFrame, spout: SpoutTransform, event_time: str, is_tracked: Column) -> Column:
    time = event_ms_of(frame, event_time)
    where = f"{spout.component}: {event_time}: expected a time in each row, in milliseconds since 1970 from year 1 to"
    message_id = F.col(quote_column(spout.message_id)).cast("string")
    got = F.coalesce(time.cast("string"), F.lit("null"))
    fault = F.concat(F.lit(f"{where} 9999, got "), got, F.lit(f" where {spout.message_id} is "), message_id)
    legal = F.when(time.between(EVENT_MS_MIN, EVENT_MS_MAX), time).otherwise(F.raise_error(fault).cast("bigint"))
    return F.when(is_tracked, legal)


def project(frame: DataFrame, expressions: dict[str, Column | None]) -> DataFrame:
    """Return columns of the user: None keeps one; an expression is evaluated for the rows that are alive."""
    columns = [
        F.col(quote_column(name)) if value is None else F.when(F.col(ALIVE), value).alias(name)
        for name, value in expressions.items()
    ]
    return _change(frame, columns)


def fail_nulls(
    frame: DataFrame, expressions: dict[str, Column], texts: dict[str, str], reads: dict[str, list[str]], component: str
) -> DataFrame:
    """Fail the rows for which an expression is null though none of the columns that it reads is."""
    users = user_columns(frame)
    fresh = {name: f"{MATCHES}_{index}" for index, name in enumerate(expressions)}
    valued = frame.withColumns({fresh[name]: F.when(F.col(ALIVE), value) for name, value in expressions.items()})
    reason = F.lit(None).cast("string")
    for name in reversed(list(expressions)):
        given = functools.reduce(operator.and_, (column.isNotNull() for column in columns_of(reads[name])), F.lit(True))
        is_bad = F.col(ALIVE) & F.col(fresh[name]).isNull() & given
        reason = F.when(is_bad, F.lit(f"{name}: {texts[name]} is null")).otherwise(reason)
    told = valued.withColumn(KEPT, reason)
    row = F.to_json(F.struct(*columns_of(users)), {"ignoreNullFields": "false"})
    cut = F.when(F.length(row) > ROW_CHARS_MAX, F.concat(F.left(row, F.lit(ROW_CHARS_MAX - 1)), F.lit("…"))).otherwise(
        row
    )
    failed = F.struct(F.lit(component).alias("component"), F.col(KEPT).alias("reason"), cut.alias("row"))
    columns = [F.col(fresh[name]).alias(name) if name in fresh else F.col(quote_column(name)) for name in users]
    columns += [F.col(column).alias(name) for name, column in fresh.items() if name not in users]
    is_failed = F.col(KEPT).isNotNull()
    return _change(
        told,
        columns,
        **{ALIVE: F.col(ALIVE) & ~is_failed, FAILED: F.when(is_failed, failed).otherwise(F.col(FAILED))},
    )


def keep(frame: DataFrame, condition: Column) -> DataFrame:
    """Drop the rows for which the condition is not true: their tuples are done."""
    users = columns_of(user_columns(frame))
    kept = frame.withColumn(KEPT, F.col(ALIVE) & F.coalesce(condition, F.lit(False)))
    is_dropped = F.col(ALIVE) & ~F.col(KEPT)
    value = F.when(is_dropped, _done()).otherwise(F.col(VALUE))
    return _change(kept, users, **{ALIVE: F.col(KEPT), VALUE: value})


def _done() -> Column:
    """Return the value of a row whose tuple is done and has no children."""
    return F.col(VALUE).bitwiseXOR(F.col(TUPLE))


def explode_rows(
    frame: DataFrame, array: Column, into: str, others: Sequence[str], run_seed: int, component: str, *, outer: bool
) -> DataFrame:
    """Replace each row by one for each element, its children; without elements it is done, or stays if `outer`.

    The row of the first child also carries what its parent had to say.
    """
    elements = F.posexplode_outer(F.when(F.col(ALIVE), array)).alias(ORDINAL, into)
    exploded = frame.select(*columns_of(others), *(name for name in frame.columns if name in RESERVED), elements)
    is_child = F.col(ORDINAL).isNotNull()
    child = sql_tuple_ids(run_seed, F.col(ROOT), F.col(PARENT), component, F.col(ORDINAL).cast("bigint"))
    tupled = exploded.withColumnRenamed(TUPLE, PARENT)
    tuple_id = F.when(is_child & F.col(ROOT).isNotNull(), child).otherwise(F.col(PARENT))
    tupled = tupled.withColumn(TUPLE, tuple_id)
    is_first = F.coalesce(F.col(ORDINAL), F.lit(0)) == 0
    of_parent = F.when(is_first, F.col(VALUE).bitwiseXOR(F.col(PARENT))).otherwise(F.lit(0).cast("bigint"))
    childless = F.col(VALUE) if outer else F.when(F.col(ALIVE), _done()).otherwise(F.col(VALUE))
    value = F.when(is_child, F.col(TUPLE).bitwiseXOR(of_parent)).otherwise(childless)
    once = {name: F.when(is_first, F.col(name)) for name in OF_MESSAGE}
    alive = F.col(ALIVE) if outer else F.col(ALIVE) & is_child
    users = [F.col(quote_column(name)) for name in (*others, into)]
    return _change(tupled, users, **{**once, ALIVE: alive, VALUE: value})


def drop_copies(frame: DataFrame, keys: Sequence[str], hashed: Sequence[str]) -> DataFrame:
    """Drop all rows but one of those with the same keys, the one that is first by its ids and by its columns."""
    # Rows that are not alive are nobody's copies; their root ids and shards spread them.
    dead = F.when(~F.col(ALIVE), F.coalesce(F.col(ROOT), F.col(SHARD).cast("bigint"), F.lit(0)))
    window = Window.partitionBy(F.col(ALIVE), dead, *columns_of(keys))
    return keep(frame, F.row_number().over(window.orderBy(ROOT, TUPLE, F.xxhash64(*columns_of(hashed)))) == 1)


def join_static(
    frame: DataFrame, other: DataFrame, on: Sequence[str], how: str, run_seed: int, component: str
) -> DataFrame:
    """Join rows with those of a DataFrame without trees, by columns that both have.

    The other side's rows of one key become an array in a fixed order, so that a row has its children in the same order
    whenever it is joined.
    """
    users = user_columns(frame)
    keys = [f"{MATCHES}_{index}" for index in range(len(on))]
    more = [name for name in other.columns if name not in on]
    renamed = other.select(
        *(F.col(quote_column(name)).alias(key) for name, key in zip(on, keys, strict=True)), *columns_of(more)
    )
    groups = renamed.where(functools.reduce(operator.and_, (F.col(key).isNotNull() for key in keys))).groupBy(*keys)
    is_filter = how in ("left_semi", "left_anti")
    fields_of = [F.col(quote_column(name)).alias(name) for name in more] or [F.lit(True).alias(MATCHES)]
    rows = F.lit(True) if is_filter else F.struct(*fields_of)
    matches = groups.agg((F.first(rows) if is_filter else F.array_sort(F.collect_list(rows))).alias(MATCHES))
    same = (F.col(quote_column(name)) == F.col(key) for name, key in zip(on, keys, strict=True))
    joined = frame.join(matches, functools.reduce(operator.and_, same), "left")
    if is_filter:
        found = F.col(MATCHES).isNotNull()
        kept = keep(joined, found if how == "left_semi" else ~found)
        return _change(kept, columns_of(users))
    children = explode_rows(joined, F.col(MATCHES), _MATCH, users, run_seed, component, outer=how == "left")
    fields = {name: F.col(_MATCH).getField(name) for name in more}
    return project(children, {**dict.fromkeys(users), **fields})


def end_trees(frame: DataFrame) -> DataFrame:
    """Make the rows results, which no tree waits for."""
    value = F.when(F.col(ALIVE), _done()).otherwise(F.col(VALUE))
    tuple_id = F.when(F.col(ROOT).isNotNull(), F.lit(0).cast("bigint"))
    return _change(frame, columns_of(user_columns(frame)), **{TUPLE: tuple_id, VALUE: value})


def messages_only(frame: DataFrame) -> DataFrame:
    """Return the rows that carry messages or blocks, without the user's columns; none of them is alive."""
    says = (F.col(VALUE) != 0) | F.col(ID).isNotNull() | F.col(FAILED).isNotNull() | F.col(SHARD).isNotNull()
    return _change(frame.where(says), [], **{ALIVE: F.lit(False)})
