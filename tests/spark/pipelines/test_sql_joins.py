"""Joins with a static side and dropped duplicates: every row that goes ends its tuple, every match is awaited."""

from __future__ import annotations

import pytest

from acker import Outcome
from acker.errors import AckerError
from acker.spark import spout

pytestmark = pytest.mark.spark

# Of one key with two matches, one with one, one without, and null.
ORDERS = [(1, "a", 10), (2, "b", 20), (3, "c", 30), (4, None, 40), (5, "a", 50), (6, "a", 10)]
CUSTOMERS = [("a", "Ann"), ("a", "Abe"), ("b", "Bob"), (None, "Nobody")]


def rows_of(tracked) -> list[tuple[object, ...]]:
    return sorted(map(tuple, tracked.data().collect()), key=str)


@pytest.mark.slow
def test_rows_that_go_are_done_and_matches_are_awaited(spark) -> None:
    """One job for all: five pipelines, which differ in the sources of their ids."""
    orders = spark.createDataFrame(ORDERS, "number long, key string, price int").repartition(2)
    customers = spark.createDataFrame(CUSTOMERS, "key string, name string")
    joined = {}
    for how in ("inner", "left", "left_semi", "left_anti"):
        tracked = spout(orders, message_id="number", component=how, run_seed=1).where("price < 50")
        joined[how] = tracked.join(customers, "key", how, component=f"join-{how}")
    assert rows_of(joined["inner"]) == [
        (1, "a", 10, "Abe"),
        (1, "a", 10, "Ann"),
        (2, "b", 20, "Bob"),
        (6, "a", 10, "Abe"),
        (6, "a", 10, "Ann"),
    ]
    none = [(3, "c", 30, None), (4, None, 40, None)]
    assert rows_of(joined["left"]) == sorted([*rows_of(joined["inner"]), *none], key=str)
    narrow = [each.select("number") for each in joined.values()]
    assert [number for (number,) in rows_of(narrow[3])] == [3, 4]
    single = spout(orders, message_id="number", component="single", run_seed=1).drop_duplicates(["key", "price"])
    whole = narrow[0].union(narrow[1]).union(narrow[2]).union(narrow[3]).union(single.select("number"))
    done = whole.sink().persist()
    counts = [0] * 7
    for row in done.data().collect():
        counts[row.number] += 1
    # Orders 1 and 6 are copies: one of them stays.
    assert [counts[number] for number in (2, 3, 4, 5)] == [4, 3, 3, 1] and counts[1] + counts[6] == 11
    outcomes = [(row.message_id, Outcome(row.outcome)) for row in done.completions(include_pending=True).collect()]
    assert sorted(outcomes) == sorted((number, Outcome.ACKED) for number in range(1, 7) for _ in range(5))
    done.unpersist()
    with pytest.warns(UserWarning, match="'join-inner', 'inner' emits|'inner', 'join-inner' emits"):
        left_open = joined["inner"].completions(include_pending=True)
    found = {row.message_id: Outcome(row.outcome) for row in left_open.collect()}
    assert found == dict.fromkeys([3, 4, 5], Outcome.ACKED) | dict.fromkeys([1, 2, 6], Outcome.PENDING)


def test_joins_that_trees_cannot_follow_are_refused(spark) -> None:
    orders = spark.createDataFrame(ORDERS, "number long, key string, price int")
    tracked = spout(orders, message_id="number")
    for join, found in [
        (
            lambda: tracked.join(orders, "key", "outer"),
            r"how: expected one of 'inner', 'left', 'left_semi', 'left_anti', got 'outer', as the rows of a Data",
        ),
        (lambda: tracked.join(orders, "key"), "column 'number' is there twice"),
        (lambda: tracked.join(spark.range(1), "key"), "other has no column 'key'; it has id"),
        (
            lambda: tracked.join(spark.sql("select 7 as key"), "key", "left_semi"),
            "join: 'key' is string on one side and int on the other: cast one of them",
        ),
        (lambda: tracked.join(spark.sql("select 10.0D as price"), "price"), "'price' is int on one side and double"),
        (lambda: tracked.join(spark.sql("select 'a' as key, map(1, 2) as m"), "key"), "column 'm' of other is a map"),
        (lambda: tracked.drop_duplicates("key"), "expected a sequence of columns, got 'key'"),
    ]:
        with pytest.raises(AckerError, match=found):
            join()
    assert tracked.join(spark.sql("select 10L as price, 'ten' as name"), "price").columns[-1] == "name"
    stream = spout(spark.readStream.format("rate").load(), message_id="value", run_seed=1)
    with pytest.raises(AckerError, match="drop_duplicates: expected a pipeline on a batch DataFrame"):
        stream.drop_duplicates()
    with pytest.raises(AckerError, match="join: expected a batch DataFrame, got a streaming one"):
        tracked.join(spark.readStream.format("rate").load().selectExpr("string(value) key"), "key")
