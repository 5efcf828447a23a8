"""Joins of two tracked pipelines: a joined row is in the trees of both sides, and a row that goes ends its tuple."""

from __future__ import annotations

import functools
import operator
import random
import re
import sys

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F  # noqa: N812

from acker import Outcome
from acker.errors import AckerError
from acker.spark import spout
from tests.spark.plans import plan_of

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

HOWS = ["inner", "left", "right", "outer", "left_semi", "left_anti"]
ACKED, FAILED, PENDING = Outcome.ACKED, Outcome.FAILED, Outcome.PENDING
FAILS = "if(x = 1 and y = 1 and id % 5 = 0, try_divide(1, y - 1), 0)"


def sides_of(seed: int, rows: int = 20):
    """Rows with null ids, null keys, keys of one side alone, a key that many have, and copies without an id."""
    rng = random.Random(seed)

    def side(keys: str, first: int):
        found = [(first + n, rng.choice([*keys, None]), rng.randrange(3)) for n in range(rows)]
        found[5] = (first + 5, "a", 1)  # The two rows of these ids meet, and fail.
        return [*found, *((None, key, 1) for key in (keys[0], keys[0], keys[-1]))]

    return side("aaab", 0), side("aabcd", rows)


def joined_rows(left, right, how: str):
    """Return (row of the left side or None, row of the right side or None) of each row that a join makes."""
    pairs = [(one, two) for one in left for two in right if one[1] is not None and one[1] == two[1]]
    lefts, rights = {id(one) for one, _ in pairs}, {id(two) for _, two in pairs}
    if how in ("left_semi", "left_anti"):
        return [(one, None) for one in left if (id(one) in lefts) == (how == "left_semi")]
    if how in ("left", "outer"):
        pairs += [(one, None) for one in left if id(one) not in lefts]
    if how in ("right", "outer"):
        pairs += [(None, two) for two in right if id(two) not in rights]
    return pairs


def expected(left, right, how: str):
    """Return by nested loops what `join_and_check` does: the rows, those of trees that are all ACKED, and outcomes."""
    outcomes = {row[0]: ACKED for row in (*left, *right) if row[0] is not None}
    left, right = ([row for row in side if row[2] != 2] for side in (left, right))
    done = []
    for one, two in joined_rows(left, right, how):
        ids = {row[0] for row in (one, two) if row is not None and row[0] is not None}
        row = (how, one[1] if one else two[1], one and one[2], two and two[2])
        if row[2:] == (1, 1) and one[0] is not None and one[0] % 5 == 0:
            outcomes |= dict.fromkeys(ids, FAILED)
        else:
            done.append((row, ids))
    acked = [row for row, ids in done if all(outcomes[each] is ACKED for each in ids)]
    return [row for row, _ in done], acked, {(how, number): outcome for number, outcome in outcomes.items()}


def begin(spark, rows, how: str, name: str, value: str):
    frame = spark.createDataFrame(rows, f"{name} long, key string, {value} int").repartition(2)
    # Ids of their own for each `how`, so that all of them can be settled together.
    message_id = F.concat(F.lit(f"{how} "), name)
    tracked = spout(
        frame.withColumn("message", message_id), message_id="message", component=f"{how} {name}", run_seed=1
    )
    return tracked.where(f"{value} <> 2").select(name, "key", value)


def join_and_check(spark, left, right, how: str):
    one, two = begin(spark, left, how, "id", "x"), begin(spark, right, how, "other", "y")
    joined = one.join(two, "key", how, component=f"join {how}")
    if "y" not in joined.columns:
        joined = joined.with_columns(y=F.lit(None).cast("int"))
    checked = joined.with_columns(fails=FAILS, how=F.lit(how), on_error="fail_row", component="check")
    return checked.select("how", "key", "x", "y")


def outcomes_of(tracked):
    rows = tracked.completions(include_pending=True).collect()
    found = {(*row.message_id.rsplit(" ", 1),): Outcome(row.outcome) for row in rows}
    assert len(found) == len(rows)
    return {(how, int(number)): outcome for (how, number), outcome in found.items()}


def rows_of(frame):
    return sorted(map(tuple, frame.collect()), key=str)


def echo(row):
    return [tuple(row)]


def check(spark, left, right, hows) -> None:
    """Compare the joins, all in one pipeline, with nested loops: by SQL, and behind a bolt in Python."""
    whole = functools.reduce(
        lambda one, other: one.union(other), (join_and_check(spark, left, right, how) for how in hows)
    )
    rows, acked, outcomes = zip(*(expected(left, right, how) for how in hows), strict=True)
    outcomes = functools.reduce(operator.or_, outcomes)
    rows, acked = (sorted(functools.reduce(operator.add, each), key=str) for each in (rows, acked))
    assert set(outcomes.values()) == {ACKED, FAILED} and len(acked) < len(rows)
    ends = [whole.sink()]
    assert not {"Python", "MapInArrow"} & set(re.findall(r"\w+", plan_of(ends[0].completions())))
    assert "MapInArrow" not in plan_of(ends[0].acked())
    ends.append(whole.bolt(echo, schema="how string, key string, x int, y int", sink=True))
    for tracked in ends:
        kept = tracked.persist()
        assert rows_of(kept.data()) == rows
        assert outcomes_of(kept) == outcomes
        assert rows_of(kept.acked()) == acked
        kept.unpersist()


def test_outcomes_of_a_join_are_those_of_nested_loops(spark) -> None:
    left, right = sides_of(1)
    *_, outcomes = expected(left, right, "outer")
    assert outcomes_of(join_and_check(spark, left, right, "outer").sink()) == outcomes


@pytest.mark.slow
@pytest.mark.parametrize(
    "hows", [("inner", "left_anti"), pytest.param(HOWS, marks=pytest.mark.soak)], ids=["two", "each"]
)
def test_rows_and_outcomes_of_joins_are_those_of_nested_loops(spark, hows) -> None:
    check(spark, *sides_of(2), hows)


@pytest.mark.slow
def test_a_join_that_runs_again_makes_the_same_ids(spark) -> None:
    left, right = sides_of(4)
    rows = []
    for partitions, adaptive in ((2, "true"), (5, "false")):
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        # Rows without an id are the same, so one may be taken for the other.
        joined = join_and_check(spark, left[::-1] if partitions == 5 else left, right, "outer")
        rows.append(rows_of(joined.dataframe))
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    spark.conf.unset("spark.sql.adaptive.enabled")
    assert rows[0] == rows[1]


@pytest.mark.soak
def test_a_pipeline_that_meets_itself_has_each_tree_once_in_a_row(spark) -> None:
    people = [(1, "a", None), (2, "b", 1), (3, "c", 1), (4, "d", 2), (5, "e", 5), (6, "f", 9)]
    frame = spark.createDataFrame(people, "id long, name string, boss long").repartition(2)
    everyone = spout(frame, message_id="id", component="people", run_seed=1).where("name <> 'nobody'")
    staff, bosses = everyone.branches(2)
    bosses = bosses.select(F.col("id").alias("boss"), F.col("name").alias("boss_name"))
    joined = staff.select("boss", "name").join(bosses, "boss", "inner")
    rows = [(1, "b", "a"), (1, "c", "a"), (2, "d", "b"), (5, "e", "e")]
    assert rows_of(joined.data()) == rows
    assert "Python" not in plan_of(joined.dataframe)
    trees = {row.name: 1 + len(row.acker_more or []) for row in joined.dataframe.where("acker_alive").collect()}
    assert trees == {"b": 2, "c": 2, "d": 2, "e": 1}
    for done in (joined.sink(), joined.bolt(echo, schema="boss long, name string, boss_name string", sink=True)):
        found = {row.message_id: Outcome(row.outcome) for row in done.completions(include_pending=True).collect()}
        assert found == dict.fromkeys(range(1, 7), ACKED)
    failing = joined.with_columns(x="if(name = 'd', try_divide(1, boss - 2), 0)", on_error="fail_row").sink().persist()
    for found in (failing.completions(include_pending=True), failing.unfinished()):
        missed = [row.message_id for row in found.collect() if row.outcome not in (0, "ACKED")]
        assert sorted(missed) == [2, 4]
    assert sorted(row.message_id for row in failing.failures().collect()) == [2, 4]
    assert sorted(map(tuple, failing.acked().select("name").collect())) == [("c",), ("e",)]
    failing.unpersist()
    with pytest.raises(AckerError, match="both pipelines carry the messages of 'people', which would count twice"):
        everyone.join(everyone, "id", "left_semi")


@pytest.mark.soak
def test_a_row_of_three_sides_is_in_three_trees_through_every_step(spark) -> None:
    def side(name: str, keys: str):
        frame = spark.createDataFrame([(f"{name}{key}", key) for key in keys], f"{name} string, key string")
        return spout(frame, message_id=name, component=name, run_seed=1).where(f"{name} <> ''")

    joined = side("x", "abcdef").join(side("y", "abcde"), "key").join(side("z", "abcd"), "key", component="third")
    tracked = joined.where("key <> 'b'").with_columns(
        list="if(key = 'c', try_to_number(key, '9'), 1)", on_error="fail_row", component="parse"
    )
    tracked = tracked.with_columns(list="if(key = 'd', array(), array(1, 2))").explode("list").drop_duplicates()
    one, two = tracked.branches(2)
    left_open = two.where("list = 1").select("key").where("key = 'a'")
    done = one.select("key").union(left_open)
    ended = done.sink()
    closed = {f"{name}{key}": ACKED for name, keys in (("x", "abcdef"), ("y", "abcde"), ("z", "abcd")) for key in keys}
    closed |= dict.fromkeys(["xc", "yc", "zc"], FAILED)
    for pipeline in (ended, done.bolt(echo, schema="key string", sink=True)):
        found = {row.message_id: Outcome(row.outcome) for row in pipeline.completions(include_pending=True).collect()}
        assert found == closed
    assert rows_of(ended.data()) == [("a",)] * 3
    assert sorted(row.message_id for row in ended.failures().collect()) == ["xc", "yc", "zc"]
    assert {row.component for row in ended.failures().collect()} == {"parse"}
    with pytest.warns(UserWarning, match="no bolt reads what 'branches'"):
        rows = done.completions(include_pending=True).collect()
    found = {row.message_id: Outcome(row.outcome) for row in rows}
    assert found == closed | dict.fromkeys(["xa", "ya", "za"], PENDING)


@pytest.mark.soak
def test_a_key_that_most_rows_have_is_joined_once_for_each_pair(spark) -> None:
    def side(name: str, rows: int, key: str):
        frame = spark.range(rows).select(F.concat(F.lit(name), "id").alias(name), F.expr(key).alias("key"))
        return spout(frame, message_id=name, component=name, run_seed=1).where("key is not null or key is null")

    # A tenth is null, a tenth has keys of its own.
    key = "case id % 10 when 0 then null when 1 then id else 2 end"
    joined = side("x", 5_000, key).join(side("y", 400, key), "key", "outer").sink()
    assert joined.data().count() == 4_000 * 320 + 40 + 460 + 500 + 40
    counts = joined.completions(include_pending=True).groupBy("outcome").count().collect()
    assert [tuple(row) for row in counts] == [(int(ACKED), 5_400)]
    kept = side("x", 5_000, key).join(side("y", 400, key), "key", "left_semi").sink()
    assert kept.data().count() == 4_000 + 40 and kept.completions().count() == 5_400


@pytest.mark.slow
def test_explain_shows_both_sides_of_a_join(spark, capsys) -> None:
    frame = spark.createDataFrame([(1, "a")], "id long, key string")
    one = spout(frame, message_id="id", component="orders", run_seed=1).where("id > 0").select("key")
    two = spout(frame, message_id="id", component="customers", run_seed=1)
    prices = frame.select("key", F.lit(3).alias("price"))
    one.join(two.drop("id"), "key", "outer").join(prices, "key", "left").sink().explain()
    shown = capsys.readouterr().out.splitlines()
    steps = "join(key, outer) > join(key, left) > sink"
    assert shown[:4] == [
        "== Tracked Pipeline ==",
        f"orders > where(id > 0) > select(key) > {steps}",
        f"customers > select(key) > {steps}",
        "",
    ]
    assert "== Physical Plan ==" in shown


def test_pipelines_that_cannot_be_joined_are_refused(spark) -> None:
    frame = spark.createDataFrame([(1, "a")], "id long, key string")
    one = spout(frame, message_id="id", component="one", run_seed=1)
    two = spout(frame.withColumnRenamed("id", "other"), message_id="other", component="two", run_seed=1)
    for join, found in [
        (lambda: one.join(two, "key", "full"), r"how: expected one of 'inner', .* 'right', 'outer', got 'full'"),
        (lambda: one.join(two, "id"), r"other has no column 'id'; it has other, key"),
        (lambda: one.join(two, "other"), r"there is no 'other'; there are id, key"),
        (lambda: one.join(two.with_columns(id="other"), "key"), r"column 'id' is there twice"),
        (lambda: one.join(two.select(F.col("other").alias("key")), "key"), r"'key' is string on one side and bigint"),
        (lambda: one.join(two.sink(), "key"), r"the rows of 'two' are results already: join before the sink"),
        (lambda: one.join(one, "key", "left_semi"), r"both pipelines carry the messages of 'one'"),
        (lambda: one.join("two", "key"), r"expected a DataFrame of PySpark or a Tracked, got str"),
    ]:
        with pytest.raises(AckerError, match=found):
            join()
    rate = spark.readStream.format("rate").load()
    stream = spout(rate, message_id="value", run_seed=1)
    other = spout(rate, message_id="value", component="other", run_seed=1)
    with pytest.raises(AckerError, match=r"a row that Spark's watermark drops would send no message\. Put the rows"):
        stream.join(other, "value", "left_semi")


@pytest.mark.slow
def test_the_rows_of_both_sides_in_one_stream_are_joined_in_each_micro_batch(spark, tmp_path) -> None:
    lots = [[("o1", "a"), ("c1", "a"), ("o2", "b")], [("c2", "b"), ("o3", "c"), ("c3", "c")]]
    for lot in lots:
        rows = spark.createDataFrame(lot, "id string, key string")
        rows.coalesce(1).write.mode("append").json(str(tmp_path / "rows"))
    reader = spark.readStream.schema("id string, key string").option("maxFilesPerTrigger", 1)
    stream = spout(reader.json(str(tmp_path / "rows")), message_id="id", run_seed=1).where("true")
    pairs, outcomes = [], {}

    def write(frame, batch_id: int) -> None:
        orders, customers = stream.micro_batch(frame).branches(2)
        orders = orders.where("id like 'o%'")
        customers = customers.where("id like 'c%'").select(F.col("id").alias("customer"), "key")
        joined = orders.join(customers, "key", "left").sink()
        pairs.extend((row.id, row.customer) for row in joined.data().collect())
        outcomes.update({row.message_id: Outcome(row.outcome) for row in joined.completions().collect()})

    writer = stream.dataframe.writeStream.foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    # Order 2 and customer 2 come in different micro-batches.
    assert sorted(pairs) == [("o1", "c1"), ("o2", None), ("o3", "c3")]
    assert outcomes == dict.fromkeys(["o1", "o2", "o3", "c1", "c2", "c3"], ACKED)
