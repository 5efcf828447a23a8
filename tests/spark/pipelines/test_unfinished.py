"""The messages of a pipeline that are not finished, with the rows that they were."""

from __future__ import annotations

import sys

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F  # noqa: N812

from acker.errors import AckerError
from acker.spark import spout

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

LINES = [("é", "a b", 0), ("x", "lost", 2), (None, "no tree", 0)]


def words_of(frame, name):
    return spout(frame, message_id="line", component=name, run_seed=1, attempt="attempt")


def test_what_is_not_finished_comes_with_its_row_and_can_be_sent_again(spark) -> None:
    frame = spark.createDataFrame(LINES, "line string, text string, attempt int").coalesce(1)
    other = frame.select(F.lit("z").alias("line"), F.lit(7).alias("attempt"), F.lit(0.5).alias("share")).limit(1)
    # No step ends the trees of the second spout, nor those of rows that a bolt should read.
    done = words_of(frame, "lines").where("text <> 'lost'").select("line").sink()
    both = done.union(words_of(frame.where("text = 'lost'"), "again").select("line").where("true"))
    both = both.union(words_of(other, "shares").where("true").select("line"))
    with pytest.warns(UserWarning, match="no bolt reads what 'again', 'shares' emits"):
        found = sorted(
            map(tuple, both.unfinished().select("message_id", "outcome", "reason", "attempt", "row.*").collect())
        )
    assert found == [
        ("x", "PENDING", None, 2, "x", "lost", 2, None),
        ("z", "PENDING", None, 7, "z", None, 7, 0.5),
    ]
    with pytest.raises(AckerError, match="expected a pipeline of one spout, got 3"):
        both.unfinished(frame)
    again = words_of(frame, "lines").where("true").unfinished
    with pytest.warns(UserWarning, match="no bolt reads"):
        rows = again().select("row.line", "row.text", (F.col("attempt") + 1).alias("attempt"))
    replayed = words_of(rows, "lines").where("true").sink()
    assert sorted(row.message_id for row in replayed.completions().collect()) == ["x", "é"]


def count(row):
    if row.text == "lost":
        raise ValueError("no words")
    return [len(row.text)]


@pytest.mark.slow
def test_a_micro_batch_takes_its_rows_from_a_table(spark, tmp_path) -> None:
    """Lines that fail are in both micro-batches, and the table has the lines of both."""
    lots = [[("é", "a b", 0), ("x", "lost", 2)], [("y", "lost", 0), ("z", "lost", 3), (None, "lost", 0)]]
    schema = "line string, text string, attempt int"
    for lot in lots:
        spark.createDataFrame(lot, schema).coalesce(1).write.mode("append").json(str(tmp_path / "lines"))
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    stream = words_of(reader.json(str(tmp_path / "lines")), "lines").bolt(count, schema="n int", sink=True)
    with pytest.raises(AckerError, match="expected rows of a batch, got those of a stream: call it on a `micro_batch`"):
        stream.unfinished(spark.createDataFrame(LINES, schema))
    found = []

    def write(frame, batch_id: int) -> None:
        part = stream.micro_batch(frame).persist()
        with pytest.raises(AckerError, match="expected rows of a batch, got those of a stream"):
            part.unfinished()
        missed = part.unfinished(source=spark.read.schema(schema).json(str(tmp_path / "lines")))
        found.append(sorted(map(tuple, missed.select(*missed.columns[:-1], "row.text").collect())))
        part.unpersist()

    writer = stream.dataframe.writeStream.foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    why = ("FAILED", "count", "ValueError: no words")
    assert sorted(found) == [[("x", *why, 2, "lost")], [("y", *why, 0, "lost"), ("z", *why, 3, "lost")]]
