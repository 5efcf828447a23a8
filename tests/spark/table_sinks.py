"""The recipes for Delta and Iceberg of docs/spark-sinks.md: a micro-batch that is written twice appends once.

Their jars are for one release of Spark, and Spark fetches them from Maven Central. So this is no part of other runs:
`make spark-versions VERSIONS=4.1` runs it.
"""

import os
import subprocess
import sys

from blocks import ROOT
from tests.connectors.running_page import programs_of


def test_delta_and_iceberg_have_a_micro_batch_once_that_was_written_twice(tmp_path):
    """In a process of its own, whose session has the jars."""
    blocks = programs_of("spark-sinks.md", "tests/spark/table_sinks.py")
    assert len(blocks) == 3
    program = tmp_path / "page.py"
    program.write_text("\n".join(block.body for block in blocks))
    # Few tasks, as the tables are small.
    settings = "--conf spark.ui.enabled=false --conf spark.databricks.delta.snapshotPartitions=2"
    variables = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--master local[2] {settings} pyspark-shell"}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(block.prints or "" for block in blocks)
