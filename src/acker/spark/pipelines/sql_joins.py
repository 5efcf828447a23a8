"""Joins of tracked pipelines that Spark's SQL runs: with a DataFrame without trees, and with another pipeline."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker.spark.messages import quote_column
from acker.spark.pipelines.hidden_columns import (
    ALIVE,
    ATTEMPT,
    BLOCK,
    FAILED,
    ID,
    MATCHES,
    MORE,
    OF_TREE,
    ROOT,
    SHARD,
    TASK,
    TUPLE,
    VALUE,
)
from acker.spark.pipelines.sql_ids import sql_tuple_ids
from acker.spark.pipelines.sql_rows import (
    change_hidden,
    change_tree,
    change_trees,
    columns_of,
    explode_rows,
    hashed_columns,
    keep,
    opaque,
    project,
    user_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The other side's row of a join, until its fields are columns.
_MATCH: Final = "acker_match"
# Of a row: what spreads it where it meets no other, its place among those of its key, and its side.
_SPREAD: Final = f"{MATCHES}_spread"
_RANK: Final = f"{MATCHES}_rank"
_IS_LEFT: Final = f"{MATCHES}_left"


def join_static(
    frame: DataFrame, other: DataFrame, on: Sequence[str], how: str, run_seed: int, component: str
) -> DataFrame:
    """Join rows with those of a DataFrame without trees, by columns that both have.

    The other side's rows of one key become an array in a fixed order, so that a row has its children in the same order
    whenever it is joined.
    """
    users = user_columns(frame)
    keys = _keys(on)
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
        return change_hidden(kept, columns_of(users))
    children = explode_rows(joined, F.col(MATCHES), _MATCH, users, run_seed, component, outer=how == "left")
    fields = {name: F.col(_MATCH).getField(name) for name in more}
    return project(children, {**dict.fromkeys(users), **fields})


def join_tracked(
    left: DataFrame, right: DataFrame, on: Sequence[str], how: str, run_seed: int, component: str
) -> DataFrame:
    """Join rows with those of another pipeline, by columns that both have; a joined row belongs to the trees of both.

    Each row of a side has a rank among those of its key, an order of ids that is the same in each evaluation. A joined
    row is in the trees of a side the child with the rank of the other side's row. It also carries what a row had to
    say, if it is that row's first.
    """
    if how in ("left_semi", "left_anti"):
        return _filter_by(left, right, on, is_semi=how == "left_semi")
    one = _Side(_rank(left, on), "acker_left_", stays=how in ("left", "outer"))
    two = _Side(_rank(right, on), "acker_right_", stays=how in ("right", "outer"))
    same = (one[name] == two[name] for name in (_SPREAD, *_keys(on)))
    joined = one.frame.join(two.frame, functools.reduce(operator.and_, same), "full")
    is_pair = one[ALIVE].isNotNull() & two[ALIVE].isNotNull()
    trees = F.concat(*one.trees(two, is_pair, run_seed, component), *two.trees(one, is_pair, run_seed, component))
    # Each step in a column of its own, so that it is computed once.
    anchored = joined.withColumn(MATCHES, opaque(F.filter(trees, lambda tree: tree.getField(ROOT).isNotNull())))
    whole = anchored.withColumn(MATCHES, opaque(_one_for_each_root(F.col(MATCHES))))
    whole = whole.withColumn(MORE, F.when(F.size(MATCHES) > 1, F.slice(MATCHES, 2, F.size(MATCHES))))
    alive = is_pair | F.when(one[ALIVE].isNotNull(), one[ALIVE] & F.lit(one.stays)).otherwise(
        two[ALIVE] & F.lit(two.stays)
    )
    hidden = {name: F.get(MATCHES, 0).getField(name) for name in OF_TREE}
    hidden.update({name: F.coalesce(one[name], two[name]) for name in (FAILED, SHARD, BLOCK)})
    users = {name: F.coalesce(one[name], two[name]) if name in on else one[name] for name in user_columns(left)}
    users.update({name: two[name] for name in user_columns(right) if name not in on})
    # Under the names of rows, beside those of both sides.
    found = whole.select(*(value.alias(name) for name, value in {**users, **hidden, ALIVE: alive}.items()), MORE)
    return change_hidden(found, columns_of(list(users)))


class _Side:
    """One side of a join; its columns have names that those of the other side do not have."""

    def __init__(self, frame: DataFrame, prefix: str, *, stays: bool) -> None:
        self.frame = frame.select(
            *(F.col(quote_column(name)).alias(f"{prefix}{name}") for name in frame.columns),
        )
        self.stays = stays
        self._prefix = prefix

    def __getitem__(self, name: str) -> Column:
        return F.col(quote_column(f"{self._prefix}{name}"))

    def trees(self, other: _Side, is_pair: Column, run_seed: int, component: str) -> list[Column]:
        """Return the trees that a row of the join has from this side, as arrays."""
        is_first = F.coalesce(other[_RANK], F.lit(1)) == 1
        is_gone = self[ALIVE] & F.lit(not self.stays)

        def change(root_id: Column, parent: Column, said: Column) -> tuple[Column, Column]:
            child = sql_tuple_ids(run_seed, root_id, parent, component, other[_RANK].cast("bigint"))
            over = said.bitwiseXOR(parent)
            joined = child.bitwiseXOR(F.when(is_first, over).otherwise(F.lit(0).cast("bigint")))
            alone = F.when(is_gone, over).otherwise(said)
            return F.when(is_pair, child).otherwise(parent), F.when(is_pair, joined).otherwise(alone)

        found = [F.array(change_tree({name: self[name] for name in OF_TREE}, change, is_first))]
        if f"{self._prefix}{MORE}" in self.frame.columns:
            nothing = F.slice(found[0], 1, 0)
            found.append(F.coalesce(change_trees(self[MORE], change, is_first), nothing))
        return found


def _one_for_each_root(trees: Column) -> Column:
    """Return trees of which none is there twice: the row's tuple id in a tree is the xor of those that it has there."""

    def of_one(root_id: Column) -> Column:
        mine = F.filter(trees, lambda tree: tree.getField(ROOT) == root_id)

        def xor_of(name: str) -> Column:
            zero = F.lit(0).cast("bigint")
            return F.aggregate(mine, zero, lambda xor, tree: xor.bitwiseXOR(tree.getField(name)))

        def known(name: str) -> Column:
            return F.get(
                F.filter(F.transform(mine, lambda tree: tree.getField(name)), lambda each: each.isNotNull()), 0
            )

        fields = {ROOT: root_id, **{name: xor_of(name) for name in (TUPLE, VALUE)}}
        fields.update({name: known(name) for name in (ID, TASK, ATTEMPT)})
        return F.struct(*(fields[name].alias(name) for name in OF_TREE))

    roots = F.array_distinct(F.transform(trees, lambda tree: tree.getField(ROOT)))
    return F.when(F.size(roots) == F.size(trees), trees).otherwise(F.transform(roots, of_one))


def _filter_by(left: DataFrame, right: DataFrame, on: Sequence[str], *, is_semi: bool) -> DataFrame:
    """Keep the rows with a match, or those without; the other side's rows are done.

    The rows of both sides in one DataFrame, so that the rows of one key are looked through once.
    """
    of_right = user_columns(right)
    marked = _mark(right, on).withColumn(_IS_LEFT, F.lit(False))
    others = marked.select(*(name for name in marked.columns if name not in of_right))
    both = _mark(left, on).withColumn(_IS_LEFT, F.lit(True)).unionByName(others, allowMissingColumns=True)
    is_met = F.bool_or(~F.col(_IS_LEFT)).over(Window.partitionBy(_SPREAD, *_keys(on)))
    is_found = is_met & F.col(_keys(on)[0]).isNotNull()
    return keep(both, F.col(_IS_LEFT) & (is_found if is_semi else ~is_found))


def _mark(frame: DataFrame, on: Sequence[str]) -> DataFrame:
    """Add the columns by which rows meet; rows that meet no other, such as dead ones, have null keys and are spread."""
    meets = functools.reduce(operator.and_, (column.isNotNull() for column in columns_of(on)), F.col(ALIVE))
    spread = F.when(meets, F.lit(0).cast("bigint")).otherwise(F.xxhash64(ROOT, TUPLE, SHARD))
    keys = {key: F.when(meets, column) for key, column in zip(_keys(on), columns_of(on), strict=True)}
    return frame.withColumns({_SPREAD: spread, **keys})


def _rank(frame: DataFrame, on: Sequence[str]) -> DataFrame:
    marked = _mark(frame, on)
    window = Window.partitionBy(_SPREAD, *_keys(on)).orderBy(ROOT, TUPLE, F.xxhash64(*hashed_columns(frame)))
    return marked.withColumn(_RANK, F.row_number().over(window))


def _keys(on: Sequence[str]) -> list[str]:
    return [f"{MATCHES}_{index}" for index in range(len(on))]
