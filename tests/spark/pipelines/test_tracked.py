"""Tracked pipelines: a tree ends as its rows did, however often and wherever they were computed."""

from __future__ import annotations

import datetime
import os
import re
import signal
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from acker import Outcome
from acker._engine.combiner import Combiner
from acker.spark import completions_of
from acker.spark.blocks import decode_block
from acker.spark.pipelines.tracked import spout
from acker.spark.pipelines.user_functions import REASON_CHARS_MAX, Outputs
from tests.spark.lossy import lose
from tests.spark.test_text_ids import OF_ONE_HASH

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

TEXTS = ["a b a", "", "boom here", "c", "d e f g", "b", "lost x", "ünï ☃"]


@pytest.fixture(scope="module")
def lines(spark):
    return frame_of(spark, TEXTS)


def frame_of(spark, texts, partitions=3):
    rows = [(number, text) for number, text in enumerate(texts)]
    return spark.createDataFrame(rows, "line long, text string").repartition(partitions)


def split(row):
    if row.text.startswith("boom"):
        raise ValueError(f"no: {row.text}")
    return row.text.split()


def keep(row):
    return [tuple(row)]


def words_of(frame, **options):
    return spout(frame, message_id="line", component="lines", run_seed=1, **options).bolt(split, schema="word string")


def counted(frame, **options):
    return (
        words_of(frame, **options)
        .grouped("word", partitions=2)
        .bolt(keep, schema="word string", component="count", sink=True)
    )


def outcomes(*pipeline) -> dict[int, Outcome]:
    rows = completions_of(*pipeline, include_pending=True).collect()
    found = {row.message_id: Outcome(row.outcome) for row in rows}
    assert len(found) == len(rows)
    return found


def texts_of(tracked) -> list[tuple[str, str]]:
    return sorted((row.component, row.reason) for row in tracked.failures().collect())


def gathered(*blocks: bytes) -> dict[int, tuple[int, ...]]:
    """What blocks say together, by root; what another plan says of the same rows can be compared with it."""
    combiner = Combiner()
    for block in blocks:
        combiner.merge(decode_block(block)[0])
    (part,) = combiner.partials(1)
    return {row[0]: row[1:] for row in zip(*(column.tolist() for column in part[:6]), strict=True)}


def said_by(tracked) -> dict[int, tuple[int, ...]]:
    return gathered(*(bytes(row.block) for row in tracked.blocks().collect()))


def test_each_tree_ends_as_its_rows_did(lines) -> None:
    tracked = counted(lines).persist()
    expected = dict.fromkeys(range(len(TEXTS)), Outcome.ACKED) | {2: Outcome.FAILED}
    assert outcomes(tracked) == expected
    assert texts_of(tracked) == [("split", "ValueError: no: boom here")]
    assert sorted(row.word for row in tracked.data().collect()) == sorted(
        word for text in TEXTS if not text.startswith("boom") for word in text.split()
    )
    finished = tracked.completions().collect()
    assert {row.message_id for row in finished} == set(expected) and all(row.elapsed_ms == 0 for row in finished)
    counters = tracked.counters()
    words = sum(len(text.split()) for text in TEXTS) - 2
    assert counters.messages == 2 * len(TEXTS) + words and counters.native_ns > 0
    lines_did, split_did, count_did = (counters.components[name] for name in ("lines", "split", "count"))
    assert (lines_did.executed, lines_did.emitted, lines_did.messages) == (0, len(TEXTS), len(TEXTS))
    assert (split_did.executed, split_did.emitted, split_did.failed) == (len(TEXTS), words, 1)
    assert split_did.fanout == {0: 1, 1: 2, 2: 2, 3: 1, 4: 1}
    assert (count_did.executed, count_did.messages, count_did.function_ns > 0) == (words, words, True)
    assert f">{len(TEXTS)} rows read<" in tracked._repr_html_() and ">1 failed<" in tracked._repr_html_()
    tracked.unpersist()


def test_task_ids_and_message_ids_come_back(spark) -> None:
    rows = [(10, 1, 7, 0), (10, 2, 8, 1), (-(2**63), 1, 2**31 - 1, 0)]
    frame = spark.createDataFrame(rows, "offset long, partition int, task int, attempt short")
    tracked = spout(frame, message_id="offset", source="partition", task_id="task", attempt="attempt")
    done = tracked.bolt(lambda row: None, schema="x int", component="end", sink=True).completions().collect()
    assert sorted((row.message_id, row.task_id) for row in done) == sorted((row[0], row[2]) for row in rows)
    assert len({row.root_id for row in done}) == 3


def test_a_lost_tuple_leaves_its_tree_open(lines) -> None:
    tracked = lose(words_of(lines), "word", "x").bolt(keep, schema="word string", component="count", sink=True)
    found = outcomes(tracked)
    assert found.pop(6) == Outcome.PENDING
    assert found.pop(2) == Outcome.FAILED
    assert set(found.values()) == {Outcome.ACKED}


def test_a_tuple_that_nobody_consumes_leaves_its_tree_open(lines) -> None:
    with pytest.warns(UserWarning, match="no bolt reads what 'split' emits"):
        found = outcomes(words_of(lines))
    assert found[1] == Outcome.ACKED  # No words: acked at once.
    assert found[2] == Outcome.FAILED
    assert all(found[line] == Outcome.PENDING for line in found.keys() - {1, 2})


def test_ids_depend_on_what_a_row_is_and_not_on_where_it_is_computed(spark, lines) -> None:
    said = said_by(counted(lines))
    assert len(said) == len(TEXTS)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        assert said_by(counted(lines.repartition(1).orderBy(F.desc("line")))) == said
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert said_by(counted(lines.repartition(7))) == said
    assert said.keys().isdisjoint(said_by(counted(lines, attempt=1)))
    other = spout(lines, message_id="line", component="lines", run_seed=2)
    assert said.keys().isdisjoint(said_by(other))
    assert other.run_seed == 2
    drawn = spout(lines, message_id="line")
    assert drawn.run_seed != spout(lines, message_id="line").run_seed
    assert said_by(drawn) == said_by(drawn)


def test_trees_finish_when_a_worker_is_killed_between_two_evaluations(spark, lines, tmp_path) -> None:
    """Half of the messages come from the first evaluation and half from the second, as when partitions are lost."""
    marker = tmp_path / "killed"
    marker.touch()

    def fragile(row):
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        except FileExistsError:
            pass
        return [row.word]

    tracked = (
        words_of(lines)
        .grouped("word", partitions=4)
        .bolt(fragile, schema="word string")
        .grouped("word", partitions=4)
        .bolt(keep, schema="word string", component="count", sink=True)
    )

    def evaluate() -> dict[int, list[bytes]]:
        rows = tracked.dataframe.where("acker_shard >= 0").select(F.spark_partition_id(), "acker_block").collect()
        return {part: sorted(bytes(row[1]) for row in rows if row[0] == part) for part in range(4)}

    first = evaluate()
    marker.unlink()
    second = evaluate()
    assert marker.exists()  # A worker was killed, and its task ran again.
    assert sum(bool(blocks) for blocks in first.values()) > 1
    mixed = gathered(*(block for part in range(4) for block in (first, second)[part % 2][part]))
    assert mixed == gathered(*(block for blocks in first.values() for block in blocks))
    combiner = Combiner()
    for part in range(4):
        for block in (second, first)[part % 2][part]:
            combiner.merge(decode_block(block)[0])
    done = combiner.settle(include_pending=True)
    expected = dict.fromkeys(range(len(TEXTS)), Outcome.ACKED) | {2: Outcome.FAILED}
    assert dict(zip(done.message_id.tolist(), done.outcome.tolist(), strict=True)) == expected


def pair(batch: pa.RecordBatch) -> Outputs:
    """Join the rows of each key into one, anchored to all of them."""
    rows: dict[str, list[int]] = {}
    for place, key in enumerate(batch.column("key").to_pylist()):
        rows.setdefault(key, []).append(place)
    return Outputs({"key": list(rows), "size": [len(places) for places in rows.values()]}, list(rows.values()))


@pytest.fixture(scope="module")
def keyed(spark):
    rows = [(0, "p"), (1, "p"), (2, "q"), (3, "r"), (4, "r"), (5, "s")]
    frame = spark.createDataFrame(rows, "line long, key string").repartition(3)
    return (
        spout(frame, message_id="line", run_seed=3)
        .grouped("key", partitions=2)
        .bolt(pair, schema="key string, size int", by="partition")
    )


def test_a_joined_row_belongs_to_the_trees_of_all_its_parents(keyed) -> None:
    tracked = keyed.bolt(keep, schema="key string, size int", component="end", sink=True)
    assert set(outcomes(tracked).values()) == {Outcome.ACKED}
    assert sorted(map(tuple, tracked.data().collect())) == [("p", 2), ("q", 1), ("r", 2), ("s", 1)]
    lossy = lose(keyed, "key", "p").bolt(keep, schema="key string, size int", component="end", sink=True)
    lost = {0: Outcome.PENDING, 1: Outcome.PENDING}
    assert outcomes(lossy) == dict.fromkeys(range(6), Outcome.ACKED) | lost


def test_a_joined_row_that_fails_fails_all_its_trees(keyed) -> None:
    def refuse(row):
        if row.key == "r":
            raise RuntimeError("not r")
        return [row.key]

    tracked = keyed.bolt(refuse, schema="key string", sink=True).persist()
    failed = {3: Outcome.FAILED, 4: Outcome.FAILED}
    assert outcomes(tracked) == dict.fromkeys(range(6), Outcome.ACKED) | failed
    assert texts_of(tracked) == [("refuse", "RuntimeError: not r")] * 2
    roots = [row.root_id for row in tracked.completions().where("message_id = 0").collect()]
    assert sorted(row.key for row in tracked.data(without=roots).collect()) == ["q", "s"]
    assert sorted(row.key for row in tracked.acked().collect()) == ["p", "q", "s"]
    tracked.unpersist()


def test_a_tree_that_forks_and_meets_again_finishes(spark) -> None:
    """A diamond: two tuples of one tree become parents of one row, which then has one tuple id in that tree."""
    frame = spark.createDataFrame([(0, "k")], "line long, key string")
    twice = spout(frame, message_id="line").bolt(lambda row: [row.key] * 2, schema="key string", component="twice")
    met = twice.grouped("key").bolt(pair, schema="key string, size int", by="partition")
    done = met.bolt(keep, schema="key string, size int", component="end", sink=True)
    assert outcomes(done) == {0: Outcome.ACKED}
    assert [row.size for row in done.data().collect()] == [2]


def test_branches_are_awaited_all(lines) -> None:
    left, right = words_of(lines).branches(2)
    left = left.grouped("word").bolt(keep, schema="word string", component="left", sink=True)
    right = lose(right, "word", "c").bolt(keep, schema="word string", component="right", sink=True)
    found = outcomes(left, right)
    assert found.pop(2) == Outcome.FAILED and found.pop(3) == Outcome.PENDING
    assert set(found.values()) == {Outcome.ACKED}
    assert outcomes(left.union(right))[3] == Outcome.PENDING
    assert set(outcomes(left).values()) == {Outcome.ACKED, Outcome.FAILED, Outcome.PENDING}  # The other is missing.
    assert outcomes(right) == {}  # Nothing is tracked by what a later branch says alone.
    both = left.union(right)
    assert both.counters().components["split"].executed == len(TEXTS)
    drawn = re.findall(r"<title>(.* to .*)</title>", both._repr_html_().replace("</g>", "\n"))
    assert {"split to branches", "branches to left: fields(word)", "branches to right"} <= set(drawn)


def test_plans_show_the_components(lines, capsys) -> None:
    words = words_of(lines).grouped("word").bolt(keep, schema="word string", component="count", sink=True)
    words.dataframe.explain()
    words.completions(include_pending=True).explain()
    words.data(without=[1]).explain()
    plans = capsys.readouterr().out
    for name in ("lines > split", "count", "settle", "data"):
        assert f"MapInArrow {name}(" in plans, name
    assert "MapInArrow run(" not in plans


def test_a_pipeline_is_shown_by_its_components_and_columns(lines) -> None:
    words = words_of(lines)
    assert repr(words) == (
        f"<Tracked components: lines, split; columns: word string; shards: {words.plan.shards}; "
        "DataFrames: data(), completions(), failures()>"
    )


def test_messages_are_not_counted_twice(lines) -> None:
    words = words_of(lines)
    one = words.bolt(keep, schema="word string", component="one", sink=True)
    other = words.bolt(keep, schema="word string", component="other", sink=True)
    for together in (lambda: one.union(other), lambda: completions_of(one, other)):
        with pytest.raises(ValueError, match=r"both pipelines carry the messages of 'lines'.*branches"):
            together()
    again = spout(lines, message_id="line", component="lines")
    with pytest.raises(ValueError, match=r"component: 'lines' names two components"):
        again.union(words_of(lines))


@pytest.mark.slow
def test_two_spouts_in_one_pipeline(lines) -> None:
    """The same message ids under another component are other trees."""
    tracked = words_of(lines).union(
        spout(lines, message_id="line", component="more", run_seed=1).bolt(
            lambda row: row.text.split(), schema="word string", component="gentle split"
        )
    )
    done = tracked.bolt(keep, schema="word string", component="count", sink=True).completions()
    assert {tuple(row) for row in done.groupBy("outcome").count().collect()} == {(0, 2 * len(TEXTS) - 1), (1, 1)}


@pytest.mark.parametrize("type_", ["string", "binary"])
def test_ids_that_are_no_numbers_come_back_as_they_are(spark, type_) -> None:
    texts = {"a-1": "a b", "ü": "boom", "": "c", "lost": "x", "l" * 100_000: "d", "\u00e9": "e", "e\u0301": "x"}
    rows = [(None, "a"), *texts.items()]
    frame = spark.createDataFrame(rows, "line string, text string").withColumn("line", F.col("line").cast(type_))
    ids = {text: text if type_ == "string" else text.encode() for text in texts}
    tracked = lose(words_of(frame.repartition(3)), "word", "x")
    tracked = tracked.bolt(keep, schema="word string", component="count", sink=True).persist()
    ended = dict.fromkeys(texts, Outcome.ACKED) | {"ü": Outcome.FAILED, "lost": Outcome.PENDING}
    ended["e\u0301"] = Outcome.PENDING  # another normal form of a text is another id
    assert outcomes(tracked) == {ids[text]: outcome for text, outcome in ended.items()}
    (failed,) = tracked.failures().collect()
    assert (failed.message_id, failed.component, failed.attempt) == (ids["ü"], "split", 0)
    assert dict(tracked.completions().dtypes)["message_id"] == dict(tracked.failures().dtypes)["message_id"] == type_
    tracked.unpersist()


def test_copies_of_a_text_id_are_named(spark) -> None:
    one = spark.createDataFrame([("a", "x"), ("b", "x")], "line string, text string")
    pipelines = words_of(one.union(one).repartition(4)).bolt(keep, schema="word string", component="count", sink=True)
    with pytest.raises(
        PythonException, match=r"2 rows of one batch have the message id 'b' \(and of 1 other ids, such"
    ):
        pipelines.completions().collect()


def test_ids_that_somebody_made_to_have_one_hash_are_an_error_that_names_both(spark) -> None:
    """They would share a tree, which the work for one of them could end for both."""
    frame = spark.createDataFrame([(text, "x") for text in OF_ONE_HASH], "line string, text string").repartition(2)
    tracked = words_of(frame).bolt(keep, schema="word string", component="count", sink=True)
    both = " and ".join(re.escape(repr(text)) for text in sorted(OF_ONE_HASH))
    with pytest.raises(PythonException, match=f"the message ids {both} have the same 64-bit hash"):
        tracked.completions().collect()


def test_ids_of_two_types_are_not_settled_together(spark, lines) -> None:
    texts = spark.createDataFrame([("a", "x")], "line string, text string")
    one = counted(lines)
    other = spout(texts, message_id="line", component="texts", run_seed=1).bolt(
        keep, schema="line string, word string", component="end", sink=True
    )
    text = "message_id: ids of 'lines' are bigint, those of 'texts' are string: cast one of the columns"
    with pytest.raises(ValueError, match=text):
        completions_of(one, other)


def test_rows_without_a_message_id_stay_unanchored(spark) -> None:
    frame = spark.createDataFrame([(None, "a b"), (7, "c d"), (None, "boom")], "line long, text string")
    tracked = words_of(frame).bolt(keep, schema="word string", component="count", sink=True).persist()
    assert outcomes(tracked) == {7: Outcome.ACKED}
    assert sorted(row.word for row in tracked.data().collect()) == ["a", "b", "c", "d"]
    assert sorted(row.word for row in tracked.acked().collect()) == ["a", "b", "c", "d"]
    (failed,) = tracked.failures().collect()
    row = '{"line": null, "text": "boom"}'
    # There is no tree to fail.
    assert tuple(failed) == (None, "split", "ValueError: no: boom", None, row, None, None)
    assert tracked.counters().components["split"].failed == 1
    tracked.unpersist()


@pytest.mark.slow
def test_empty_partitions_and_empty_frames(spark, lines) -> None:
    assert set(outcomes(counted(lines.coalesce(1).repartition(20))).values()) == {Outcome.ACKED, Outcome.FAILED}
    nothing = counted(lines.where("line < 0"))
    assert outcomes(nothing) == {} and nothing.data().collect() == [] and nothing.failures().collect() == []
    assert nothing.counters().components == {} and nothing.counters().messages == 0


def test_a_batch_function_says_where_rows_come_from(lines) -> None:
    def explode(batch):
        words, parent = [], []
        failed = {}
        for place, text in enumerate(batch.column("text").to_pylist()):
            if "boom" in text:
                failed[place] = ValueError("told, not raised")
            else:
                words += text.split()
                parent += [place] * len(text.split())
        order = np.argsort(words, kind="stable")  # Outputs need not stand in the order of the inputs.
        columns = {"word": [words[place] for place in order]}
        return Outputs(pa.table(columns), np.array(parent, int)[order], failed)

    tracked = spout(lines, message_id="line").bolt(explode, schema="word string", by="batch").persist()
    assert texts_of(tracked) == [("explode", "ValueError: told, not raised")]
    done = tracked.grouped("word").bolt(keep, schema="word string", component="count", sink=True)
    assert outcomes(done) == dict.fromkeys(range(len(TEXTS)), Outcome.ACKED) | {2: Outcome.FAILED}
    tracked.unpersist()


def test_a_batch_function_that_raises_fails_the_culprits_only(lines) -> None:
    def fussy(batch):
        texts = batch.column("text").to_pylist()
        for text in texts:
            if text in ("c", "boom here"):
                raise LookupError(text)
        return Outputs({"text": texts}, list(range(len(texts))))

    tracked = spout(lines.coalesce(1), message_id="line").bolt(fussy, schema="text string", by="batch", sink=True)
    assert texts_of(tracked) == [("fussy", "LookupError: boom here"), ("fussy", "LookupError: c")]
    failed = {2: Outcome.FAILED, 3: Outcome.FAILED}
    assert outcomes(tracked) == dict.fromkeys(range(len(TEXTS)), Outcome.ACKED) | failed
    assert sorted(row.text for row in tracked.data().collect()) == sorted(set(TEXTS) - {"c", "boom here"})


def test_a_partition_function_that_raises_fails_all_its_rows(lines) -> None:
    def never(batch):
        raise LookupError(f"{batch.num_rows} rows")

    tracked = spout(lines.coalesce(1), message_id="line").bolt(never, schema="x int", by="partition")
    assert texts_of(tracked) == [("never", f"LookupError: {len(TEXTS)} rows")] * len(TEXTS)


@pytest.mark.slow
def test_columns_of_all_sorts_go_through(spark) -> None:
    schema = (
        "line long, at timestamp, day date, tags array<string>, inner struct<x: int, y: binary>, m map<string, long>"
    )
    at = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)  # noqa: DTZ001  Spark's rows have none.
    row = (0, at, at.date(), ["a", None], (1, b"\0\1"), {"k": 5})
    frame = spark.createDataFrame([row, (1, None, None, None, None, None)], schema)

    def same(row):
        assert row.line or row.at.replace(tzinfo=None) is not None
        return [row._asdict()]

    tracked = spout(frame, message_id="line").bolt(same, schema=frame.schema, sink=True).persist()
    assert texts_of(tracked) == []
    assert tracked.data().orderBy("line").collect() == frame.orderBy("line").collect()
    assert tracked.select("tags", "line").columns == ["tags", "line"]
    tracked.unpersist()


@pytest.mark.parametrize("partitions", [1, 2])
def test_rows_that_share_a_message_id_are_named(partitions, spark) -> None:
    """In one task, and in two."""
    rows = [(number % 7, f"{number}") for number in range(10)]
    frame = spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), "line long, text string")
    assert frame.rdd.getNumPartitions() == partitions
    with pytest.raises(PythonException, match=r"2 rows of one batch have the message id [012]"):
        counted(frame).completions().collect()
    frame = frame.withColumn("attempt", F.col("text").cast("long"))
    told_apart = spout(frame, message_id="line", attempt="attempt").bolt(
        lambda row: None, schema="x int", component="b", sink=True
    )
    assert told_apart.completions().count() == 10


@pytest.mark.slow
def test_columns_may_have_any_name(spark) -> None:
    odd = ["li`ne.x", "to``xt", "ü ☃ %s", "`", "a.b.c", "'\"\\"]
    frame = spark.createDataFrame(
        [(number, *"abcde") for number in range(4)],
        StructType([StructField(odd[0], LongType()), *(StructField(name, StringType()) for name in odd[1:])]),
    )
    first = spout(frame, message_id=odd[0], source=odd[0], task_id=odd[0], attempt=odd[0])
    schema = StructType([StructField(name, StringType()) for name in odd[1:]])
    tracked = (
        first.grouped(*odd)
        .bolt(lambda row: [tuple(row)[1:]], schema=schema, component="same")
        .select(*odd[1:])
        .grouped(odd[1], odd[3])
        .bolt(lambda batch: Outputs(batch, range(batch.num_rows)), schema=schema, component="b", by="batch", sink=True)
        .persist()
    )
    assert outcomes(tracked) == dict.fromkeys(range(4), Outcome.ACKED)
    assert tracked.data().columns == tracked.acked().columns == odd[1:]
    assert [tuple(row) for row in tracked.acked().collect()] == [tuple("abcde")] * 4
    tracked.unpersist()


def test_what_a_worker_refuses_ends_the_job_with_its_text(spark) -> None:
    frame = spark.createDataFrame([(1, None)], "line long, part int")
    with pytest.raises(PythonException, match="part: null in a row whose line is not"):
        spout(frame, message_id="line", source="part").blocks().collect()


def test_arguments_are_checked_where_the_pipeline_is_written(spark, lines) -> None:
    words = words_of(lines)
    bad = [
        (lambda: spout("lines", message_id="line"), TypeError, r"frame: expected a DataFrame of PySpark"),
        (
            lambda: spout(lines, message_id="number"),
            ValueError,
            r"message_id: there is no column 'number'; there are line, text",
        ),
        (
            lambda: spout(lines.withColumn("half", F.col("line") / 2), message_id="half"),
            TypeError,
            r"message_id: expected a column of integers, strings or binaries, 'half' is double",
        ),
        (lambda: spout(lines, message_id="line", source="text"), TypeError, r"source: .* 'text' is string"),
        (lambda: spout(lines, message_id="line", task_id=-1), ValueError, r"task_id: expected an integer from 0"),
        (lambda: spout(lines, message_id="line", attempt=True), TypeError, r"attempt: expected an integer"),
        (lambda: spout(lines, message_id="line", run_seed="x"), TypeError, r"run_seed: expected an integer"),
        (lambda: spout(lines, message_id="line", shards=0), ValueError, r"shards: expected an integer from 1"),
        (lambda: spout(lines, message_id="line", component=""), TypeError, r"component: expected a name, got ''"),
        (
            lambda: spout(lines.withColumn("acker_Block", F.lit(1)), message_id="line"),
            ValueError,
            r"'acker_Block' is reserved",
        ),
        (lambda: words.bolt(None, schema="x int"), TypeError, r"function: expected a callable, got NoneType"),
        (lambda: words.bolt(keep, schema=""), ValueError, r"schema: expected at least one column"),
        (lambda: words.bolt(keep, schema=IntegerType()), TypeError, r"schema: expected a StructType or its text"),
        (lambda: words.bolt(keep, schema="acker_shard int"), ValueError, r"'acker_shard' is reserved"),
        (
            lambda: words.bolt(
                keep, schema=StructType([StructField("x", IntegerType()), StructField("X", IntegerType())])
            ),
            ValueError,
            r"'X' is there twice",
        ),
        (
            lambda: words.bolt(keep, schema="x int", by="column"),
            ValueError,
            r"by: expected one of 'row', 'batch', 'partition'",
        ),
        (
            lambda: words.bolt(lambda row: None, schema="x int"),
            ValueError,
            r"component: a function without a name needs one",
        ),
        (lambda: words.bolt(split, schema="x int"), ValueError, r"component: 'split' is there already"),
        (lambda: words.branches(2, component="lines"), ValueError, r"component: 'lines' is there already"),
        (lambda: words.branches(0), ValueError, r"count: expected an integer from 1"),
        (words.grouped, ValueError, r"columns: expected at least one"),
        (lambda: words.grouped("text"), ValueError, r"columns: there is no 'text'; there are word"),
        (lambda: words.grouped("word", partitions=0), ValueError, r"partitions: expected an integer from 1"),
        (lambda: words.shuffled(0), ValueError, r"partitions: expected an integer from 1"),
        (lambda: words.select("line"), ValueError, r"columns: there is no 'line'"),
        (words.select, ValueError, r"columns: expected at least one"),
        (completions_of, ValueError, r"expected at least one pipeline"),
        (lambda: words.union(spout(lines, message_id="line")), ValueError, r"union: the columns differ"),
        (
            lambda: words.union(spout(lines, message_id="line", shards=5)),
            ValueError,
            r"shards: 2 in one pipeline, 5 in another",
        ),
    ]
    for make, kind, text in bad:
        with pytest.raises(kind, match=text):
            make()


def test_shuffled_rows_and_persisted_levels(lines) -> None:
    from pyspark import StorageLevel

    tracked = words_of(lines).shuffled(3).bolt(keep, schema="word string", component="count", sink=True)
    kept = tracked.persist(StorageLevel.DISK_ONLY)
    assert kept.dataframe.storageLevel == StorageLevel.DISK_ONLY
    assert set(outcomes(kept).values()) == {Outcome.ACKED, Outcome.FAILED}
    assert not kept.unpersist().dataframe.storageLevel.useDisk


def test_long_reasons_are_cut(spark) -> None:
    frame = frame_of(spark, ["x"])

    def shout(row):
        raise RuntimeError("é" * 5000)

    ((component, reason),) = texts_of(spout(frame, message_id="line").bolt(shout, schema="x int"))
    assert component == "shout" and len(reason) == REASON_CHARS_MAX and reason.startswith("RuntimeError: éé")
