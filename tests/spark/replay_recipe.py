"""The recipes of docs/spark.md for messages that are not finished, as the end of a program with a session."""

from __future__ import annotations

from blocks import ROOT, blocks_of
from tests.connectors.running_page import programs_of

# Of three lines one is no number: it fails, and is sent again.
_PIPELINE = """
import sys
import acker.spark as aspark
from pyspark.sql import functions as F

folder = sys.argv[1]
lines = spark.createDataFrame([(1, "7", 0), (2, "no", 0), (3, "8", 0)], "line long, text string, attempt long")
tracked = aspark.spout(lines, message_id="line", attempt="attempt", component="lines")
pipeline = tracked.with_columns(number="try_cast(text as int)", on_error="fail_row", component="parse").sink()
"""
SENT_AGAIN = [[2, "no", 1]]


def recipe(test: str) -> str:
    """Return a program for a session `spark` that sends a line again, by the block of the page that a test runs."""
    (folder,) = (block.body for block in blocks_of(ROOT / "docs/spark.md") if "pipeline.unfinished()" in block.body)
    (block,) = programs_of("spark.md", test)
    return _PIPELINE + folder + block.body
