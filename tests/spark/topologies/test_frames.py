"""Spouts whose tuples are the rows of a DataFrame: what frame() may return, and how its rows end."""

from __future__ import annotations

import datetime as dt
import logging
import os
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from acker.errors import TopologyError
from acker.spark import read_state
from acker.spark.topologies import micro_batches
from acker.spark.topologies.frames import number_of
from acker.topology import Bolt, Grouping, ReliableSpout, Spout, StatefulBolt, Topology
from tests.spark.topologies.both import is_first, note, run_spark

pytestmark = pytest.mark.usefixtures("quiet")


class Rows(Spout):
    """Some rows."""

    outputs = ["n", "word"]
    tup_id_column = "n"

    def frame(self, spark, conf):
        return spark.range(30).select(F.col("id").alias("n"), F.concat(F.lit("w"), F.col("id")).alias("word"))

    def ack(self, tup_id):
        note(self, "acked", tup_id)

    def fail(self, tup_id, reason):
        note(self, "failed", tup_id, reason.component, reason.exception, reason.attempt)


class Picky(Bolt):
    """Fails some numbers, one of them once."""

    def process(self, tup):
        note(self, tup.n, tup.word)
        if tup.n == 5 or (tup.n == 6 and is_first(self, 6)):
            raise ValueError(f"no {tup.n}")


def topology_of(spout, bolt=Picky):
    numbers = spout.spec(par=1)
    body = {"rows": numbers, "picky": bolt.spec(inputs={numbers: Grouping.fields("n")}, par=2)}
    return type("Framed", (Topology,), body)


@pytest.mark.spark
def test_a_spout_with_ack_and_fail_of_its_own_hears_of_each_row(spark, tmp_path):
    end = run_spark(topology_of(Rows), spark, tmp_path / "run")
    assert sorted(key[3] for key in end.of("rows") if key[2] == "acked") == [n for n in range(30) if n not in {5, 6}]
    assert sorted(key[3:] for key in end.of("rows") if key[2] == "failed") == [
        (n, "picky", f"ValueError: no {n}", 1) for n in (5, 6)
    ]
    figures = end.report.stats.components()["rows"]
    assert (figures.acked, figures.failed, figures.emitted) == (28, 2, {"default": 30})
    assert figures.complete_latency.total == 28


class ReliableRows(ReliableSpout):
    """Rows whose ids are no numbers, and no field."""

    outputs = ["n", "word"]
    tup_id_column = "key"
    backoff_secs = 0.02
    attempts_max = 3

    def frame(self, spark, conf):
        frame = Rows.frame(self, spark, conf)
        return frame.select("word", "n", F.concat(F.lit("key "), F.col("n")).alias("key"), F.lit(1).alias("more"))

    def dead_letter(self, tup_id, values, reason):
        note(self, "dead", tup_id, tuple(values), reason.exception, reason.attempt)


@pytest.mark.spark
def test_rows_that_fail_are_emitted_again_and_given_up(spark, tmp_path):
    end = run_spark(topology_of(ReliableRows), spark, tmp_path / "run")
    assert end.of("rows", tasks=False) == {("dead", "key 5", (5, "w5"), "ValueError: no 5", 3): 1}
    assert end.of("picky", tasks=False) == {(n, f"w{n}"): {5: 3, 6: 2}.get(n, 1) for n in range(30)}
    figures = end.report.stats.components()["rows"]
    assert (figures.acked, figures.failed, figures.dead_letters) == (29, 4, 1)
    # Of the rows, and of the replay of one, which the driver has emitted.
    assert figures.complete_latency.total == 29


class FarRows(ReliableRows):
    """Rows of which one has a date that Python cannot hold."""

    outputs = ["n", "due"]
    attempts_max = 1

    def frame(self, spark, conf):
        due = "make_date(if(id = 1, 20204, 2024), 3, 1) as due"
        return spark.range(3).selectExpr("id as n", "concat('key ', id) as key", due)

    def dead_letter(self, tup_id, values, reason):
        note(self, "dead", tup_id, values[0], values[1].to_string().split()[1], reason.exception, reason.attempt)


class Due(Bolt):
    """Sees the dates."""

    def process(self, tup):
        note(self, tup.n, tup.due)


@pytest.mark.spark
def test_a_value_that_python_cannot_hold_fails_its_row_alone(spark, tmp_path):
    end = run_spark(topology_of(FarRows, Due), spark, tmp_path / "run")
    assert end.of("picky", tasks=False) == {(n, dt.date(2024, 3, 1)): 1 for n in (0, 2)}
    what = "field of a row of 'rows', stream 'default': 'due' is date32[day]: OverflowError: date value out of range"
    assert end.of("rows", tasks=False) == {("dead", "key 1", 1, "20204-03-01", what, 1): 1}


class RowsOrCoroutine(Rows):
    """Rows on Spark; in one process a coroutine gives the tuples."""

    async def next_tuple(self):
        raise AssertionError("not where Spark reads the rows")


@pytest.mark.slow
@pytest.mark.spark
def test_a_spout_with_rows_may_have_a_coroutine_for_the_other_runtime(spark, tmp_path):
    end = run_spark(topology_of(RowsOrCoroutine), spark, tmp_path / "run")
    assert end.report.stats.components()["rows"].acked == 28


class UntrackedRows(Rows):
    """Rows without ids."""

    tup_id_column = None


@pytest.mark.slow
@pytest.mark.spark
def test_rows_without_ids_are_not_tracked(spark, tmp_path):
    end = run_spark(topology_of(UntrackedRows), spark, tmp_path / "run")
    assert sum(end.of("picky").values()) == 30
    assert not end.of("rows")
    assert end.report.stats.totals.acked == 0


def frame_of(function, base=Rows):
    """Return a spout with this DataFrame."""
    return type(base.__name__, (base,), {"frame": function})


def renumber(batches):
    """Give each row another id each time."""
    for batch in batches:
        numbers = pa.array([uuid.uuid4().int >> 66 for _ in range(batch.num_rows)], pa.int64())
        yield pa.record_batch([numbers, batch.column(1)], ["n", "word"])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("spout", "text"),
    [
        (
            frame_of(lambda self, spark, conf: [1, 2]),
            r"component 'rows': frame\(\) returned a list; expected a DataFrame",
        ),
        (
            frame_of(lambda self, spark, conf: None),
            r"component 'rows': frame\(\) returned None \(is there no `return`\?\); expected a DataFrame",
        ),
        (
            frame_of(lambda self, spark, conf: spark.range(3).toDF("m")),
            r"frame\(\) has no column 'n', 'word', which `outputs` or `tup_id_column` names; its columns are m",
        ),
        (
            frame_of(Rows.frame, type("Idless", (ReliableRows,), {"tup_id_column": None})),
            r"component 'rows': frame\(\) has no ids for a ReliableSpout, .* name their column in `tup_id_column`",
        ),
        (
            frame_of(Rows.frame, ReliableRows),
            r"frame\(\) has no column 'key', which `tup_id_column` names;",
        ),
        (
            frame_of(lambda self, spark, conf: Rows.frame(self, spark, conf).withColumn("n", F.lit(None).cast("long"))),
            "component 'rows': frame.. has a row whose 'n' is null",
        ),
        (
            frame_of(lambda self, spark, conf: Rows.frame(self, spark, conf).withColumn("n", F.lit(5))),
            "column 'n': expected unique tuple ids, and 5 is there twice",
        ),
        (
            frame_of(
                lambda self, spark, conf: Rows.frame(self, spark, conf).mapInArrow(renumber, "n long, word string")
            ),
            "are no longer in the DataFrame, such as .*must give the same rows each time",
        ),
        (
            frame_of(lambda self, spark, conf: spark.readStream.format("rate").load().toDF("n", "word")),
            r"component 'rows': frame\(\) returned a streaming DataFrame, and this is a batch job",
        ),
    ],
    ids=["no frame", "none", "no fields", "no ids", "no id", "null", "twice", "changes", "streaming"],
)
def test_what_frame_may_not_return_is_told(spark, tmp_path, spout, text):
    with pytest.raises(Exception, match=text):
        run_spark(topology_of(spout), spark, tmp_path / "run")


def fail_to_read(self, spark, conf):
    raise LookupError("no table")


@pytest.mark.spark
@pytest.mark.parametrize("is_stream", [False, True], ids=["batch job", "stream"])
@pytest.mark.parametrize("frame", [lambda self, spark, conf: [1, 2], fail_to_read], ids=["no frame", "raises"])
def test_a_frame_that_is_refused_is_told_once(spark, tmp_path, caplog, is_stream, frame):
    logging.disable(logging.NOTSET)
    options = {"checkpoint": str(tmp_path / "checkpoint")} if is_stream else {}
    with caplog.at_level(logging.INFO), pytest.raises((TopologyError, LookupError)) as told:
        run_spark(topology_of(frame_of(frame)), spark, tmp_path / "run", **options)
    assert "component 'rows': frame()" in "".join([str(told.value), *getattr(told.value, "__notes__", ())])
    records = [record for record in caplog.records if not record.name.startswith("py4j")]  # which tells of connections
    assert not [record for record in records if record.exc_info or record.levelno >= logging.ERROR]


class Ticking(Rows):
    """One row a micro-batch, in the only partition of a stream."""

    def frame(self, spark, conf):
        stream = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
        return stream.select(F.col("value").alias("n"), F.col("value").cast("string").alias("word"))


@pytest.mark.slow
@pytest.mark.spark
def test_the_rows_of_a_stream_in_one_partition_are_no_clock(spark, tmp_path):
    options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "0 seconds", "until": 3}
    end = run_spark(topology_of(Ticking), spark, tmp_path / "run", **options)
    seen = sorted(n for n, _ in end.of("picky", tasks=False))
    assert len(seen) >= 3
    assert seen == list(range(len(seen)))


class InFiles(Rows):
    """The numbers in the lines of text files, a file a micro-batch."""

    def frame(self, spark, conf):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(conf["user.files"])
        return lines.select(F.col("value").cast("long").alias("n"), F.concat(F.lit("w"), "value").alias("word"))


class InAnyOrder(InFiles):
    """The same, in another order each time that a file is read, as behind a shuffle on a cluster."""

    def frame(self, spark, conf):
        return InFiles.frame(self, spark, conf).mapInArrow(turned(conf["user.files"]), "n long, word string")


def turned(folder):
    def turn(batches):
        for batch in batches:
            reads = Path(folder, f"_reads of {batch.column(0)[0]}")  # hidden from Spark
            with reads.open("a") as log:
                log.write("x")
            rows = np.roll(np.arange(batch.num_rows), reads.stat().st_size)
            yield batch.take(pa.array(rows))

    return turn


class CountsFirst(StatefulBolt):
    """Leaves a trace of what it fails."""

    def process(self, tup):
        self.state[tup.n] = self.state.get(tup.n, 0) + 1
        if tup.n in {5, 8}:
            raise ValueError(f"no {tup.n}")


@pytest.mark.slow
@pytest.mark.spark
def test_rows_in_another_order_the_second_time_are_all_counted(spark, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for number, (begin, end) in enumerate([(0, 3), (3, 12)]):
        (folder / f"{number}.txt").write_text("".join(f"{n}\n" for n in range(begin, end)))
        os.utime(folder / f"{number}.txt", (number, number))
    options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "0 seconds", "until": 10}
    conf = {"user.files": str(folder)}
    end = run_spark(topology_of(InAnyOrder, CountsFirst), spark, tmp_path / "run", conf, **options)
    good = [n for n in range(12) if n not in {5, 8}]
    assert sorted(key[3] for key in end.of("rows") if key[2] == "acked") == good
    counted = Counter()
    for state in read_state(tmp_path / "checkpoint")["picky"]:
        counted.update(state)
    assert counted == dict.fromkeys(good, 1)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("trees_max", [micro_batches._TREES_MAX, 4])
def test_few_trees_are_settled_on_the_driver_and_many_on_executors(spark, tmp_path, caplog, monkeypatch, trees_max):
    logging.disable(logging.NOTSET)
    monkeypatch.setattr(micro_batches, "_TREES_MAX", trees_max)
    folder = tmp_path / "files"
    folder.mkdir()
    for number, (begin, end) in enumerate([(0, 3), (3, 7), (7, 40)]):
        file = folder / f"{number}.txt"
        file.write_text("".join(f"{n}\n" for n in range(begin, end)))
        os.utime(file, (number, number))  # Spark takes the oldest first
    options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "0 seconds", "until": 38}
    with caplog.at_level(logging.INFO, "acker.spark"):
        end = run_spark(topology_of(InFiles), spark, tmp_path / "run", {"user.files": str(folder)}, **options)
    assert sorted(key[3] for key in end.of("rows") if key[2] == "acked") == [n for n in range(40) if n not in {5, 6}]
    assert sorted(key[3:] for key in end.of("rows") if key[2] == "failed") == [
        (n, "picky", f"ValueError: no {n}", 1) for n in (5, 6)
    ]
    assert sum("has many trees" in record.message for record in caplog.records) == (trees_max == 4)


def test_numbers_are_their_own_message_ids():
    for number in (0, -1, 7, 2**63 - 1, -(2**63)):
        assert number_of(number) == number


@pytest.mark.parametrize(
    "tup_id",
    ["", "storm", b"storm", True, 2**63, 1.5, ("a", 1), Decimal("1.50"), dt.date(2026, 1, 2), uuid.UUID(int=7)],
    ids=repr,
)
def test_what_is_no_number_has_a_hash_that_fits(tup_id):
    assert -(2**63) <= number_of(tup_id) < 2**63
    assert number_of(tup_id) == number_of(tup_id)


def test_many_ids_have_as_many_hashes():
    assert number_of("storm") == number_of(b"storm") == -2928557970922724523
    assert len({number_of(f"id {n}") for n in range(300_000)}) == 300_000
