"""Aggregations of tracked pipelines: groups of live rows, and groups of only those rows whose trees are all ACKED."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter

import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from acker import Outcome
from acker.errors import AckerError
from acker.spark import completions_of, spout
from acker.spark.pipelines.user_functions import Outputs
from tests.spark.lossy import lose
from tests.spark.plans import plan_of

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

ACKED, FAILED, PENDING = Outcome.ACKED, Outcome.FAILED, Outcome.PENDING
SCHEMA = "id long, items array<struct<key: string, x: int>>"
# Of these a row fails, and one is dropped.
FAILING, DROPPED = 9, 7


def orders_of(seed: int):
    """Orders of no items to four, some without an id; null keys, and a key that only items of a failed order have."""
    rng = random.Random(seed)

    def items():
        return [(rng.choice(["a", "b", "c", None]), rng.randrange(FAILING)) for _ in range(rng.randrange(5))]

    orders = [(number if number % 5 else None, items()) for number in range(30)]
    return [*orders, (100, [("a", 1), ("only", 2), ("b", FAILING), (None, 3)]), (None, [("a", FAILING), ("b", 5)])]


def sums_of(items):
    """Return (key, sum, number) of each group, by a plain loop."""
    total, number = Counter(), Counter()
    for key, x in items:
        total[key] += x
        number[key] += 1
    return sorted(((key, total[key], number[key]) for key in number), key=str)


def rows_of(frame):
    return sorted(map(tuple, frame.collect()), key=str)


def outcomes_of(*pipelines):
    rows = completions_of(*pipelines, include_pending=True).collect()
    found = {row.message_id: Outcome(row.outcome) for row in rows}
    assert len(found) == len(rows)
    return found


def begin(frame):
    return spout(frame, message_id="id", component="orders", run_seed=1, shards=2)


def check(row):
    if row.x == FAILING:
        raise ValueError("no price")
    return [tuple(row)] if row.x != DROPPED else []


def items_in_sql(frame):
    items = (
        begin(frame).explode("items", into="item").select(F.col("item.key").alias("key"), F.col("item.x").alias("x"))
    )
    items = items.with_columns(checked=f"try_divide(1, x - {FAILING})", on_error="fail_row", component="check")
    return items.where(f"x <> {DROPPED}").drop("checked")


def items_in_python(frame):
    items = begin(frame).bolt(lambda row: row.items, schema="key string, x int", component="items")
    return items.bolt(check, schema="key string, x int")


def totals_of(items, **options):
    return items.grouped("key", **options).agg(F.sum("x").alias("total"), "count(*) as number")


@pytest.mark.parametrize("make", [items_in_sql, pytest.param(items_in_python, marks=pytest.mark.soak)])
def test_groups_have_the_rows_that_a_plain_loop_puts_there(spark, make) -> None:
    orders = orders_of(1)
    live = [(key, x) for _, items in orders for key, x in items if x not in (FAILING, DROPPED)]
    good = [(key, x) for number, items in orders if number != 100 for key, x in items if x not in (FAILING, DROPPED)]
    assert {key for key, _ in live} - {key for key, _ in good} == {"only"} and None in {key for key, _ in good}
    totals = totals_of(make(spark.createDataFrame(orders, SCHEMA).repartition(3))).persist()
    assert totals.columns == ["key", "total", "number"]
    assert rows_of(totals.data()) == sums_of(live)
    assert rows_of(totals.acked()) == sums_of(good)
    assert outcomes_of(totals) == dict.fromkeys((n for n, _ in orders if n is not None), ACKED) | {100: FAILED}
    (missed,) = totals.unfinished().collect()
    assert (missed.message_id, missed.component, len(missed.row["items"])) == (100, "check", 4)
    failed = {str(row.message_id): row.root_id for row in totals.failures().collect()}
    assert sorted(failed) == ["100", "None"]
    assert rows_of(totals.data(without=[failed["100"]])) == sums_of(good)
    totals.unpersist()


@pytest.mark.slow
def test_groups_are_those_of_spark_and_the_plan_has_no_python(spark, capsys) -> None:
    frame = spark.createDataFrame(
        [(1, "a", 2), (2, None, 3), (3, "a", None), (None, "b", 5)], "id long, `k.1` string, x int"
    )
    aggregates = [F.avg("x").alias("mean"), F.expr("max(id) as last"), F.count("x"), F.sort_array(F.collect_list("x"))]
    totals = begin(frame).grouped("k.1").agg(*aggregates)
    expected = frame.groupBy("`k.1`").agg(*aggregates)
    for found in (totals.data(), totals.acked()):
        assert "Python" not in plan_of(found) and "MapInArrow" not in plan_of(found)
        assert found.schema == expected.schema
        assert rows_of(found) == rows_of(expected)
    assert outcomes_of(totals) == dict.fromkeys([1, 2, 3], ACKED)
    kept = begin(frame).grouped("k.1").persist()
    assert rows_of(kept.agg(*aggregates).data()) == rows_of(expected)
    kept.unpersist()
    # One shuffle, of what Spark's aggregation leaves of each partition.
    assert plan_of(totals.data()).count("Exchange hashpartitioning") == 1
    totals.explain()
    shown = capsys.readouterr().out
    assert "orders > fields(k.1) > agg(avg(x) AS mean, " in shown and "HashAggregate" in shown
    assert repr(totals).startswith("<Aggregated components: orders; columns: k.1 string, mean double, last bigint")
    assert "mean double" in totals._repr_html_() and "<title>orders" in totals._repr_html_()
    spread = totals_of(begin(frame).select(F.col("`k.1`").alias("key"), "x"), partitions=3).data()
    assert re.search(r"Exchange hashpartitioning\(key#\d+, 3\)", plan_of(spread))
    assert rows_of(spread) == [("a", 2, 2), ("b", 5, 1), (None, 3, 1)]
    nothing = totals_of(items_in_sql(spark.createDataFrame([], SCHEMA)))
    assert rows_of(nothing.data()) == rows_of(nothing.acked()) == [] and outcomes_of(nothing) == {}


def echo(batch):
    """One row of each key, in the trees of all rows with that key."""
    rows: dict[str, list[int]] = {}
    for place, key in enumerate(batch.column("key").to_pylist()):
        rows.setdefault(key, []).append(place)
    return Outputs({"key": list(rows), "x": [len(places) for places in rows.values()]}, list(rows.values()))


@pytest.mark.soak
def test_a_row_of_several_trees_is_left_out_if_one_of_them_failed(spark) -> None:
    frame = spark.createDataFrame([(1, [("a", 1), ("b", 2), ("b", FAILING)]), (2, [("a", 4), ("c", 8)])], SCHEMA)
    joined = items_in_sql(frame).join(
        spout(
            spark.createDataFrame([(3, "a", 1), (4, "b", 1), (5, "c", 1)], "other long, key string, y int"),
            message_id="other",
            run_seed=1,
            shards=2,
        ),
        "key",
    )
    met = (
        items_in_python(frame)
        .grouped("key", partitions=2)
        .bolt(echo, schema="key string, x int", by="partition", sink=True)
    )
    for totals, live, good in (
        (totals_of(joined), [("a", 5, 2), ("b", 2, 1), ("c", 8, 1)], [("a", 4, 1), ("c", 8, 1)]),
        (totals_of(met), [("a", 2, 1), ("b", 1, 1), ("c", 1, 1)], [("c", 1, 1)]),
    ):
        assert rows_of(totals.data()) == live
        assert rows_of(totals.acked()) == good
        outcomes = outcomes_of(totals)
        assert {outcomes.pop(1)} == {FAILED} and set(outcomes.values()) == {ACKED}


@pytest.mark.slow
def test_one_branch_is_aggregated_and_the_other_awaited(spark) -> None:
    frame = spark.createDataFrame([(1, [("a", 1), ("b", 2)]), (2, [("a", 4), ("lost", 8)])], SCHEMA)
    one, two = items_in_python(frame).branches(2)
    totals = totals_of(one)
    rows = lose(two, "key", "lost").bolt(check, schema="key string, x int", component="rows", sink=True)
    assert outcomes_of(totals, rows) == {1: ACKED, 2: PENDING}
    assert outcomes_of(totals, totals_of(two)) == {1: ACKED, 2: ACKED}
    root_id = completions_of(totals, rows, include_pending=True).where("message_id = 2").first().root_id
    assert rows_of(totals.data(without=[root_id])) == [("a", 1, 1), ("b", 2, 1)]
    counters = totals.counters().components
    assert counters["items"].emitted == 4 and ">2 rows read<" in totals._repr_html_()


@pytest.mark.slow
def test_what_does_not_fit_an_aggregation_is_refused(spark) -> None:
    frame = spark.createDataFrame([(1, "a", 1)], "id long, key string, x int")
    rows = begin(frame)
    grouped = rows.grouped("key")
    totals = rows.transform(lambda each: each.grouped("key").agg(F.sum("x").alias("total")))
    ended = r"an aggregation ends a pipeline, as a group has no tree of its own: do the step before grouped"
    other = begin(frame).grouped("key").agg("count(*)")
    for step, fault, found in [
        (grouped.agg, AckerError, r"agg: columns: expected at least one aggregate"),
        (lambda: grouped.agg(3), AckerError, r"agg: columns: expected a Column or the text of an expression, got 3"),
        (lambda: grouped.agg(F.sum("y")), AnalysisException, r"UNRESOLVED_COLUMN.*`y`"),
        (lambda: grouped.agg(F.max("acker_root")), AnalysisException, r"UNRESOLVED_COLUMN.*`acker_root`"),
        (lambda: grouped.agg("x"), AnalysisException, r"MISSING_AGGREGATION"),
        (lambda: totals.where("total > 1"), AttributeError, rf"'Aggregated' object has no attribute 'where': {ended}"),
        (lambda: totals.bolt(check, schema="x int"), AttributeError, ended),
        (lambda: rows.union(totals), AckerError, rf"union: expected a Tracked, got Aggregated: {ended}"),
        (lambda: rows.join(totals, "key"), AckerError, rf"join: expected a Tracked, got Aggregated: {ended}"),
        (lambda: completions_of(totals, other), AckerError, r"component: 'orders' names two components"),
        (lambda: completions_of(totals, rows), AckerError, r"both pipelines carry the messages of 'orders'"),
    ]:
        with pytest.raises(fault, match=found):
            step()
    assert not hasattr(totals, "select") and hasattr(totals, "acked")
    # Rows of a group that another step reads are in their trees as ever.
    assert outcomes_of(grouped.sink()) == {1: ACKED}


@pytest.mark.slow
def test_the_groups_of_a_stream_are_those_of_each_micro_batch(spark, tmp_path) -> None:
    lots = [[(1, [("a", 1), ("b", 2)]), (2, [("a", 4), ("b", FAILING)])], [(3, [("a", 8)]), (4, [(None, 16)])]]
    for lot in lots:
        spark.createDataFrame(lot, SCHEMA).coalesce(1).write.mode("append").json(str(tmp_path / "orders"))
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "orders"))
    totals = totals_of(items_in_sql(stream))
    refused = (
        r"data: expected a pipeline on a batch DataFrame, got a streaming one; a group of a stream is never complete"
    )
    with pytest.raises(AckerError, match=refused):
        totals.data()
    with pytest.raises(AckerError, match=r"acked: expected a pipeline on a batch DataFrame"):
        totals.acked()
    sums, outcomes = Counter(), {}

    def write(frame, batch_id: int) -> None:
        part = totals.micro_batch(frame).persist()
        sums.update({row.key: row.total for row in part.acked().collect()})
        outcomes.update(outcomes_of(part))
        part.unpersist()

    writer = totals.dataframe.writeStream.foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert sums == {"a": 9, "b": 2, None: 16}
    assert outcomes == {1: ACKED, 2: FAILED, 3: ACKED, 4: ACKED}
    totals.explain()
