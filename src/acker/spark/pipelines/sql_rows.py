"""Steps of a tracked pipeline that Spark's SQL runs: DataFrames whose rows carry trees and messages in plain columns.

See `acker.spark.pipelines.hidden_columns` for the columns. Each function takes such a DataFrame and returns another.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
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
    MORE,
    OF_MESSAGE,
    OF_TREE,
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


# (root id, tuple id, value) of a row in a tree -> the tuple id and value that it has there after a step.
TreeChange = Callable[["Column", "Column", "Column"], tuple["Column", "Column"]]


def user_columns(frame: DataFrame) -> list[str]:
    """Return the names of the user's columns."""
    return [name for name in frame.columns if name not in RESERVED and not name.startswith(MATCHES)]


def columns_of(names: Sequence[str]) -> list[Column]:
    """Return the columns with these names."""
    return [F.col(quote_column(name)) for name in names]


def change_hidden(frame: DataFrame, users: Sequence[Column], **changed: Column) -> DataFrame:
    """Return these columns of the user, and the hidden ones, some of them with other values."""
    hidden = [name for name in (*SQL_HIDDEN, EVENT_MS, MORE) if name in frame.columns]
    if MORE in changed:
        # Before the others: a function of array elements would read what these become here, not what they were.
        frame = frame.withColumn(MORE, changed.pop(MORE))
    return frame.select(*users, *(changed.get(name, F.col(name)).alias(name) for name in hidden))


def change_tree(fields: dict[str, Column], change: TreeChange, is_told: Column | None = None) -> Column:
    """Return a tree of a row as a struct; where `is_told` is not true, another row carries its TRACK."""
    tuple_id, value = change(fields[ROOT], fields[TUPLE], fields[VALUE])
    changed = {**fields, TUPLE: tuple_id, VALUE: value}
    if is_told is not None:
        changed.update({name: F.when(is_told, fields[name]) for name in (ID, TASK, ATTEMPT)})
    return F.struct(*(changed[name].alias(name) for name in OF_TREE))


def change_trees(trees: Column, change: TreeChange, is_told: Column | None = None) -> Column:
    """Do so with each tree of an array."""

    def of_one(tree: Column) -> Column:
        return change_tree({name: tree.getField(name) for name in OF_TREE}, change, is_told)

    return F.transform(trees, of_one)


def opaque(column: Column) -> Column:
    """Return a column that Spark's optimizer does not copy to where it is read, several times, and those copies again.

    It does so to move filters down. The plan of a few joins would grow until the driver had no memory.
    """
    return F.when(F.spark_partition_id() >= 0, column)


def trees_of_rows() -> Column:
    """Return the trees of a row that may have several, as an array."""
    first = F.array(F.struct(*OF_TREE))
    return F.when(F.col(MORE).isNull(), first).otherwise(F.concat(first, MORE))


def _change_more(frame: DataFrame, change: TreeChange, is_told: Column | None = None) -> dict[str, Column]:
    return {MORE: change_trees(F.col(MORE), change, is_told)} if MORE in frame.columns else {}


def _end_more(frame: DataFrame, is_done: Column, *, is_result: bool = False) -> dict[str, Column]:
    """Let the tuples of rows be done in their further trees too."""

    def change(_: Column, tuple_id: Column, value: Column) -> tuple[Column, Column]:
        after = F.lit(0).cast("bigint") if is_result else tuple_id
        return after, F.when(is_done, value.bitwiseXOR(tuple_id)).otherwise(value)

    return _change_more(frame, change)


def hashed_columns(frame: DataFrame) -> list[Column]:
    """Return the user's columns that Spark can hash."""
    users = user_columns(frame)
    return columns_of([name for name, kind in frame.dtypes if name in users and "map<" not in kind])


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
    return change_hidden(whole, users)


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
    return change_hidden(frame, columns)


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
    return change_hidden(
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
    return change_hidden(kept, users, **{ALIVE: F.col(KEPT), VALUE: value, **_end_more(kept, is_dropped)})


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

    def change(root_id: Column, parent: Column, said: Column) -> tuple[Column, Column]:
        born = sql_tuple_ids(run_seed, root_id, parent, component, F.col(ORDINAL).cast("bigint"))
        over = said.bitwiseXOR(parent)
        unborn = said if outer else F.when(F.col(ALIVE), over).otherwise(said)
        first = born.bitwiseXOR(F.when(is_first, over).otherwise(F.lit(0).cast("bigint")))
        return F.when(is_child, born).otherwise(parent), F.when(is_child, first).otherwise(unborn)

    more = _change_more(tupled, change, is_first)
    return change_hidden(tupled, users, **{**once, **more, ALIVE: alive, VALUE: value})


def branch_rows(frame: DataFrame, run_seed: int, component: str, branch: int, branches: int) -> DataFrame:
    """Deliver each row to one reader of several, as `BranchTransform` does."""
    is_alive = F.col(ALIVE)

    def change(root_id: Column, parent: Column, said: Column) -> tuple[Column, Column]:
        ids = [sql_tuple_ids(run_seed, root_id, parent, component, each) for each in range(branches)]
        of_all = functools.reduce(lambda one, other: one.bitwiseXOR(other), ids, said.bitwiseXOR(parent))
        value = F.when(is_alive, of_all).otherwise(said) if branch == 0 else F.lit(0).cast("bigint")
        return F.when(root_id.isNotNull() & is_alive, ids[branch]).otherwise(parent), value

    # Only the first branch carries the messages before the fork.
    is_told = None if branch == 0 else F.lit(False)
    rows = frame if branch == 0 else frame.where(is_alive)
    tree = change_tree({name: F.col(name) for name in OF_TREE}, change, is_told)
    forked = rows.withColumns({KEPT: tree, **_change_more(rows, change, is_told)})
    return change_hidden(
        forked, columns_of(user_columns(frame)), **{name: F.col(KEPT).getField(name) for name in OF_TREE}
    )


def drop_copies(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Drop all rows but one of those with the same keys, the one that is first by its ids and by its columns."""
    # Rows that are not alive are nobody's copies; their root ids and shards spread them.
    dead = F.when(~F.col(ALIVE), F.coalesce(F.col(ROOT), F.col(SHARD).cast("bigint"), F.lit(0)))
    window = Window.partitionBy(F.col(ALIVE), dead, *columns_of(keys))
    return keep(frame, F.row_number().over(window.orderBy(ROOT, TUPLE, F.xxhash64(*hashed_columns(frame)))) == 1)


def end_trees(frame: DataFrame) -> DataFrame:
    """Make the rows results, which no tree waits for."""
    value = F.when(F.col(ALIVE), _done()).otherwise(F.col(VALUE))
    tuple_id = F.when(F.col(ROOT).isNotNull(), F.lit(0).cast("bigint"))
    more = _end_more(frame, F.col(ALIVE), is_result=True)
    return change_hidden(frame, columns_of(user_columns(frame)), **{TUPLE: tuple_id, VALUE: value, **more})


def messages_only(frame: DataFrame) -> DataFrame:
    """Return the rows that carry messages or blocks, without the user's columns; none of them is alive."""
    says = (F.col(VALUE) != 0) | F.col(ID).isNotNull() | F.col(FAILED).isNotNull() | F.col(SHARD).isNotNull()
    if MORE in frame.columns:
        says |= F.col(MORE).isNotNull()
    return change_hidden(frame.where(says), [], **{ALIVE: F.lit(False)})


def rows_without(frame: DataFrame, trees: DataFrame) -> DataFrame:
    """Return the rows that are alive and belong to none of these trees, a DataFrame with the column `ROOT`."""
    rows = frame.where(ALIVE)
    if MORE not in frame.columns:
        return rows.join(trees, ROOT, "left_anti")
    rooted = rows.withColumn(MATCHES, opaque(F.transform(trees_of_rows(), lambda tree: tree.getField(ROOT))))
    several = rooted.select(MATCHES).distinct().select(MATCHES, F.explode(MATCHES).alias(ROOT))
    return rooted.join(several.join(trees, ROOT, "left_semi"), MATCHES, "left_anti")
