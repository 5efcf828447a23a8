"""The messages of a pipeline that are not finished, with the rows that they were."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F  # noqa: N812

from acker.errors import AckerError
from acker.spark import spout

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
