"""Steps of a pipeline that Spark's SQL runs: outcomes and rows as with Python bolts, and no Python in the plan."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from pyspark import cloudpickle
from pyspark.errors import SparkRuntimeException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from acker import Outcome
from acker._engine.ids import root_ids, tuple_ids
from acker.errors import AckerError
from acker.spark import completions_of
from acker.spark.pipelines.sql_checks import columns_read, find_columns_read
from acker.spark.pipelines.sql_ids import sql_root_ids, sql_tuple_ids
from acker.spark.pipelines.tracked import spout
from tests.spark.plans import plan_of

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63)]
# Dropped, without words, with an empty word, null, and one without an id.
TEXTS = [(1, "to be or not"), (2, "drop me"), (3, ""), (4, None), (5, "a  b"), (None, "no tree"), (6, "x")]


def test_ids_in_sql_are_those_of_python(spark) -> None:
    rng = np.random.default_rng(31)
    numbers = np.concatenate([np.repeat(EXTREMES, 5), rng.integers(-(2**63), 2**63, 975)])
    columns = [numbers, rng.permutation(numbers), np.roll(numbers, 3)]
    frame = spark.createDataFrame(
        list(zip(*(each.tolist() for each in columns), strict=True)), "a long, b long, c long"
    )
    a, b, c = map(F.col, "abc")
    seeds = [0, 7, -(2**70)]
    expressions = []
    expected = []
    for seed in seeds:
        expressions += [
            sql_root_ids(seed, None, a, b, "lines"),
            sql_root_ids(seed, a, b, c, "lines"),
            sql_tuple_ids(seed, a, b, "split é", c),
            sql_tuple_ids(seed, a, 0, "lines", 0),
        ]
        expected += [
            root_ids(seed, "", columns[0], columns[1], component="lines"),
            root_ids(seed, *columns, component="lines"),
            tuple_ids(seed, columns[0], columns[1], "split é", columns[2]),
            tuple_ids(seed, columns[0], 0, "lines", 0),
        ]
    found = np.array([tuple(row) for row in frame.coalesce(1).select(*expressions).collect()]).T
    assert np.array_equal(found, np.array(expected))


def in_sql(frame, **options):
    return (
        spout(frame, message_id="line", component="lines", run_seed=1, **options)
        .where(~F.coalesce(F.col("text").startswith("drop"), F.lit(False)))
        .with_columns(words=F.split("text", " "), length=F.length("text"))
        .drop("text")
        .explode("words", into="word")
        .where("word != ''")
        .select("line", F.upper("word").alias("word"), "length")
        .sink()
    )


def in_python(frame, **options):
    def keep(row):
        return [] if (row.text or "").startswith("drop") else [(row.line, row.text)]

    def split(row):
        return [] if row.text is None else [(row.line, word, len(row.text)) for word in row.text.split(" ")]

    def shout(row):
        return [(row.line, row.word.upper(), row.length)] if row.word else []

    return (
        spout(frame, message_id="line", component="lines", run_seed=1, **options)
        .bolt(keep, schema="line long, text string")
        .bolt(split, schema="line long, word string, length int")
        .bolt(shout, schema="line long, word string, length int", sink=True)
    )


def outcomes(*pipelines) -> dict[object, tuple[object, ...]]:
    rows = completions_of(*pipelines, include_pending=True).collect()
    found = {
        row.message_id: (row.root_id, row.task_id, Outcome(row.outcome), row.component, row.reason) for row in rows
    }
    assert len(found) == len(rows)
    return found


def rows_of(frame) -> list[str]:
    return sorted(map(str, frame.collect()))


def test_outcomes_and_rows_are_those_of_python_bolts(spark) -> None:
    frame = spark.createDataFrame(TEXTS, "line long, text string").coalesce(1)
    sql, python = in_sql(frame), in_python(frame).persist()
    assert sql.columns == ["line", "word", "length"]
    for each in (sql.completions(), sql.data(), sql.acked(), sql.dataframe):
        assert "Python" not in plan_of(each) and "MapInArrow" not in plan_of(each)
    rows = rows_of(sql.data())
    assert rows == rows_of(python.data()) and len(rows) == 9
    found = outcomes(sql)
    assert found == outcomes(python)
    assert {line: one[2] for line, one in found.items()} == dict.fromkeys(range(1, 7), Outcome.ACKED)
    python.unpersist()


def letters(row):
    if row.word == "BOOM":
        raise ValueError("no")
    return [(row.line, list(row.word))]


def echo(row):
    return [tuple(row)]


def mixed(frame, **options):
    """SQL, a Python bolt, SQL, a shuffle, branches to a bolt and to SQL, and their union."""
    words = (
        spout(frame, message_id="line", component="lines", run_seed=1, shards=2, **options)
        .where("text is null or text not like 'drop%'")
        .with_columns(word=F.upper("text"))
        .bolt(letters, schema="line long, letters array<string>")
        .where(F.size("letters") > 2)
        .explode("letters", into="letter", outer=True)
        .grouped("letter", partitions=2)
    )
    one, two = words.branches(2)
    return one.where("letter <> ' '").sink().union(two.bolt(echo, schema="line long, letter string", sink=True))


MIXED = [(1, "abc d"), (2, "drop me"), (3, "boom"), (4, "xy"), (5, ""), (None, "tree"), (6, "f g")]
MIXED_ROWS = sorted([*"abcd", *"fg", *"tree", *"abc d", *"f g", *"tree"])


@pytest.mark.slow
def test_steps_in_sql_and_in_python_follow_each_other(spark) -> None:
    frame = spark.createDataFrame(MIXED, "line long, text string").repartition(2)
    tracked = mixed(frame, attempt=3).persist()
    assert sorted(row.letter.lower() for row in tracked.data().collect()) == MIXED_ROWS
    found = {line: one[2] for line, one in outcomes(tracked).items()}
    assert found == dict.fromkeys([1, 2, 4, 5, 6], Outcome.ACKED) | {3: Outcome.FAILED}
    (failure,) = tracked.failures().collect()
    assert (failure.message_id, failure.component, failure.reason) == (3, "letters", "ValueError: no")
    assert failure.attempt == 3
    (missed,) = tracked.unfinished().collect()
    assert (missed.message_id, missed.outcome, missed.component, missed.reason) == (
        3,
        "FAILED",
        "letters",
        "ValueError: no",
    )
    assert (missed.attempt, missed.row.asDict()) == (3, {"line": 3, "text": "boom"})
    tracked.unpersist()


def written(frame, function, checkpoint) -> None:
    writer = frame.writeStream.foreachBatch(function).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


@pytest.fixture
def stream(spark, tmp_path):
    """A stream of two micro-batches."""
    for number, lot in enumerate([TEXTS[:3], TEXTS[3:]]):
        lines = [json.dumps({"line": line, "text": text, "at": 1_000 * number}) for line, text in lot]
        (tmp_path / "lines").mkdir(exist_ok=True)
        (tmp_path / "lines" / f"{number}.json").write_text("\n".join(lines), encoding="utf-8")
    reader = spark.readStream.schema("line long, text string, at long").option("maxFilesPerTrigger", 1)
    return reader.json(str(tmp_path / "lines"))


@pytest.mark.slow
def test_micro_batches_of_sql_steps_are_evaluated_once(stream, tmp_path) -> None:
    pipeline = in_sql(stream)
    found: dict[object, Outcome] = {}
    words: list[str] = []

    def write(frame, batch_id: int) -> None:
        part = pipeline.micro_batch(frame)
        found.update({line: one[2] for line, one in outcomes(part).items()})
        words.extend(row.word for row in part.data().collect())

    written(pipeline.dataframe, write, tmp_path / "checkpoint")
    assert found == dict.fromkeys(range(1, 7), Outcome.ACKED)
    assert sorted(words) == ["A", "B", "BE", "NO", "NOT", "OR", "TO", "TREE", "X"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"event_time": "at", "timeout": "1 hour"}, pytest.param({"timeout": "1 hour"}, marks=pytest.mark.soak)],
    ids=str,
)
def test_completions_of_a_stream_are_those_of_python_bolts(spark, stream, tmp_path, options) -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    found: list[dict[object, object]] = []
    for make in (in_sql, in_python):
        ended: dict[object, object] = {}
        completions = make(stream.drop("at") if "event_time" not in options else stream).completions(**options)

        def write(frame, batch_id: int, ended: dict[object, object] = ended) -> None:
            ended.update({row.message_id: (row.root_id, row.outcome) for row in frame.collect()})

        written(completions, write, tmp_path / make.__name__)
        found.append(ended)
    spark.conf.unset(provider)
    assert found[0] == found[1] and found[0].keys() == set(range(1, 7))


@pytest.mark.slow
def test_ids_that_are_texts_and_attempts_pass_and_shared_ones_are_refused(spark) -> None:
    rows = [("é", "a b", 2, 7), ("x", "drop", 0, 8)]
    frame = spark.createDataFrame(rows, "line string, text string, attempt long, task int")
    tracked = spout(frame, message_id="line", component="lines", run_seed=1, attempt="attempt", task_id="task")
    tracked = tracked.where("text not like 'drop%'").with_columns(words="split(text, ' ')").explode("words").sink()
    packed = tracked.bolt(echo, schema="line string, text string, attempt long, task int, word string", sink=True)
    found = outcomes(tracked)
    assert found == outcomes(packed) and {line: one[1] for line, one in found.items()} == {"é": 7, "x": 8}
    twice = spark.createDataFrame([("é", 1), ("é", 2)], "line string, n int")
    with pytest.raises(SparkRuntimeException, match=r"2 rows of one batch have the message id é\. They would share"):
        spout(twice, message_id="line").where("n > 0").sink().completions().collect()


@pytest.mark.slow
def test_steps_that_spark_cannot_run_for_each_row_alone_are_refused(spark) -> None:
    frame = spark.createDataFrame([(1, "a", [1])], "line long, text string, list array<int>")
    lines = spout(frame, message_id="line", component="lines")
    shout = F.udf(lambda text: text.upper(), "string")
    for step, found in [
        (lambda: lines.where(shout("text") == "A"), r"where: .* a Python function .*<lambda>"),
        (lambda: lines.with_columns(n=F.rand()), r"with_columns: .*rand\(.*differs when Spark computes a row again"),
        (lambda: lines.with_columns(n=F.count("text").over(Window.partitionBy("text"))), r"an aggregate, a window"),
        (lambda: lines.select(F.max("line").alias("most")), r"select: .*an aggregate, a window or a generator"),
        (lambda: lines.select(F.explode("list").alias("n")), r"use explode, a bolt"),
        (lambda: lines.select(F.col("*")), r"select: 'acker_alive' is the pipeline's own column"),
        (lambda: lines.where("line"), r"where: expected a condition, got an expression of bigint"),
        (lambda: lines.with_columns(acker_root="1"), r"'acker_root' is reserved"),
        (lambda: lines.with_columns(n=1), r"with_columns: n: expected a Column or the text of an expression, got 1"),
        (lambda: lines.explode("text"), r"explode: expected a column of arrays, 'text' is string"),
        (lambda: lines.drop("line", "text", "list"), r"columns: expected at least one, and one that stays"),
        (lambda: lines.transform(lambda each: each.data()), r"transform: expected a function that returns a Tracked"),
    ]:
        with pytest.raises(AckerError, match=found):
            step()
    # A step is not evaluated for rows that one before has dropped, nor joins rows of several trees.
    divided = lines.where("line <> 1").with_columns(n=F.expr("1 div (line - 1)")).sink()
    assert [(row.outcome, row.message_id) for row in divided.completions().collect()] == [(0, 1)]


@pytest.mark.slow
def test_a_row_whose_expression_is_null_fails_with_the_reason(spark) -> None:
    rows = [(1, "10", 2), (2, "ten", 2), (3, None, 2), (4, "x" * 2000, 1), (None, "no", 1), (5, "8", 0)]
    frame = spark.createDataFrame(rows, "line long, text string, by int").coalesce(1)
    to_int = F.col("text").try_cast("int")  # Its text differs with Spark Connect.
    tracked = spout(frame, message_id="line", component="lines", run_seed=1).with_columns(
        number=to_int, share="try_divide(10, `by`)", on_error="fail_row", component="parse"
    )
    tracked = tracked.select("line", "number", "share").sink()
    assert rows_of(tracked.data()) == ["Row(line=1, number=10, share=5.0)", "Row(line=3, number=None, share=5.0)"]
    reasons = {line: (one[2].name, *one[3:]) for line, one in outcomes(tracked).items()}
    number = ("FAILED", "parse", f"number: {str(to_int)[8:-2]} is null")
    share = ("FAILED", "parse", "share: try_divide(10, `by`) is null")
    acked = ("ACKED", None, None)
    assert reasons == {1: acked, 2: number, 3: acked, 4: number, 5: share}
    failures = {row.message_id: (row.component, row.reason, row.row) for row in tracked.failures().collect()}
    assert failures.keys() == {2, 4, None, 5}
    assert failures[2] == (*number[1:], '{"line":2,"text":"ten","by":2}')
    assert len(failures[4][2]) == 1000 and failures[4][2].endswith("…")
    with pytest.raises(AckerError, match="on_error: expected 'fail_job' or 'fail_row', got 'drop'"):
        tracked.with_columns(n="line", on_error="drop")


@pytest.mark.parametrize(
    "expression",
    [
        "try_divide(a, length(`b.c`))",
        "try_cast(B.c as int)",
        "transform(list, a -> a + d)[0]",
        "current_date()",
        "if(`user` = 'e', current_user, f)",
        "1",
    ],
)
def test_a_client_without_a_jvm_finds_the_columns_that_an_expression_reads(spark, expression) -> None:
    """As a classic session says it."""
    row = (
        "1 as a, 'x' as `b.c`, named_struct('c', '3') as b, array(1) as list, 2 as d, 'e' as `user`, 'f' as f, 7 as a1"
    )
    frame = spark.sql(f"select {row}")
    column = F.expr(expression)
    reads, _ = columns_read(frame, frame.columns, {"n": column})
    told = {name.lower() for name in reads["n"]}  # As the expression writes them.
    assert find_columns_read(frame, frame.columns, column) == [name for name in frame.columns if name in told]
