"""The recipes for Delta and Iceberg of docs/spark-sinks.md: a micro-batch that is written twice appends once.

Their jars are for one release of Spark, and Spark fetches them from Maven Central. So this is no part of other runs:
`make spark-versions VERSIONS=4.1` runs it.
"""

import json
import os
import subprocess
import sys

from blocks import ROOT
from tests.connectors.running_page import programs_of

QUERIES = """
import json
import sys

import acker.spark as aspark
from acker import Kind

SCHEMA = "kind byte, root_id long, value long, task_id int, message_id long"


def send(path, *orders):
    rows = [row for n in orders for row in ((int(Kind.TRACK), n, n, 0, n), (int(Kind.OK), n, n, None, None))]
    spark.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("append").parquet(path)


def run(write, folder):
    # Each order is a tree of one tuple, which is done. The query dies after its first write, is started again, and
    # then once more with another order.
    crashes, written = ["the network is gone"], []

    def write_and_crash(done, batch_id):
        write(done, batch_id)
        written.append(batch_id)
        if crashes:
            raise OSError(crashes.pop())

    def start():
        messages = spark.readStream.schema(SCHEMA).parquet(f"{folder}/orders")
        writer = aspark.completions(messages, timeout="90 seconds", shards=2).writeStream.trigger(availableNow=True)
        writer = writer.foreachBatch(aspark.for_each_completion(write_and_crash))
        writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()

    send(f"{folder}/orders", 1, 2)
    try:
        start()
    except Exception as fault:
        assert "the network is gone" in str(fault), fault
    start()
    send(f"{folder}/orders", 3)
    start()
    return written


shared = sys.argv[1]
batches = [run(write, f"{shared}/{write.__name__}") for write in (write_delta, write_iceberg)]
tables = spark.read.format("delta").load(f"{shared}/ended"), spark.table("lake.db.ended")
print(json.dumps([batches, [sorted(row.message_id for row in table.collect()) for table in tables]]))
"""


def test_delta_and_iceberg_have_a_micro_batch_once_that_was_written_twice(tmp_path):
    """In a process of its own, whose session has the jars."""
    blocks = programs_of("spark-sinks.md", "tests/spark/table_sinks.py")
    assert len(blocks) == 3
    page = "\n".join(block.body for block in blocks)
    assert page.count('"/shared/') == 2
    program = tmp_path / "page.py"
    program.write_text(page.replace('"/shared/', f'"{tmp_path}/') + QUERIES)
    # Few tasks, as the tables are small.
    small = {"spark.sql.shuffle.partitions": 2, "spark.databricks.delta.snapshotPartitions": 2}
    settings = " ".join(f"--conf {name}={value}" for name, value in ({"spark.ui.enabled": "false"} | small).items())
    variables = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--master local[2] {settings} pyspark-shell"}
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    batches, tables = json.loads(done.stdout.splitlines()[-1])
    for first, again, last in batches:
        assert first == again < last
    assert tables == [[1, 2, 3], [1, 2, 3]]
