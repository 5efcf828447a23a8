"""Delta and Iceberg: a micro-batch that the recipes of docs/spark-sinks.md write twice is there once, and ledgers.

Their jars are for one release of Spark, and Spark fetches them from Maven Central. So this is no part of other runs:
`make spark-versions VERSIONS=4.1` runs it.
"""

import json
import os
import subprocess
import sys

from blocks import ROOT
from tests.connectors.running_page import programs_of
from tests.spark.replay_recipe import SENT_AGAIN, recipe
from tests.spark.streams.replay_kills import EXPECTED

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


LEDGERS = """
import itertools
import json
import sys
from pathlib import Path

import acker.spark as aspark
from tests.spark.streams.replay_kills import Driver, Steps, account


class Crash(BaseException):
    pass


class Crashing(Steps):
    def __call__(self):
        if self.left == 0:
            raise Crash
        self.left -= 1


def open_store(step):
    store = aspark.TableReplayStore(spark, table, format=format)
    save = store.save

    def save_and_step(*arguments):
        step()
        save(*arguments)
        step()

    store.save = save_and_step
    return store


def run(folder):
    # Each driver begins anew, and ends at another step.
    for crashes, last in enumerate(itertools.cycle(range(5))):
        step = Crashing(last)
        try:
            Driver(folder, step, open_store(step)).run()
        except Crash:
            continue
        return crashes, account(folder, open_store(Steps(-1)))


def write_as_another_driver(store):
    replays = aspark.Replays(store, replay=print, dead_letter=print)
    rows, note = store.rows(), store.note()
    try:
        store.save(rows, rows.slice(0, 0), "mine", "what was there before")
    except Exception as fault:
        return str(fault), store.rows() == rows and store.note() == note
    return "", False


told = []
for format, table in ("delta", "default.ledger"), ("iceberg", "lake.db.ledger"):
    folder = Path(sys.argv[1], f"with {format}")
    folder.mkdir()
    told.append([*run(folder), *write_as_another_driver(aspark.TableReplayStore(spark, table, format=format))])
print(json.dumps(told))
"""


def run_on_page(tmp_path, blocks, queries):
    """Run the blocks of the page and then queries, in a process of its own, whose session has the jars."""
    page = "\n".join(block.body for block in blocks)
    program = tmp_path / "page.py"
    program.write_text(page.replace('"/shared/', f'"{tmp_path}/') + queries)
    # Few tasks, as the tables are small.
    small = {"spark.sql.shuffle.partitions": 2, "spark.databricks.delta.snapshotPartitions": 2}
    small |= {"spark.ui.enabled": "false", "spark.sql.warehouse.dir": tmp_path / "warehouse"}
    settings = " ".join(f"--conf {name}={value}" for name, value in small.items())
    variables = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--master local[2] {settings} pyspark-shell"}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_delta_and_iceberg_have_a_micro_batch_once_that_was_written_twice(tmp_path):
    blocks = programs_of("spark-sinks.md", "tests/spark/table_sinks.py")
    assert len(blocks) == 3 and sum(block.body.count('"/shared/') for block in blocks) == 2
    batches, tables = run_on_page(tmp_path, blocks, QUERIES)
    for first, again, last in batches:
        assert first == again < last
    assert tables == [[1, 2, 3], [1, 2, 3]]


def test_a_ledger_in_delta_or_iceberg_goes_on_wherever_its_driver_ended(tmp_path):
    session, *_ = programs_of("spark-sinks.md", "tests/spark/table_sinks.py")
    for crashes, account, error, is_unchanged in run_on_page(tmp_path, [session], LEDGERS):
        assert crashes > 5 and account == EXPECTED
        assert "another process has changed table" in error and is_unchanged


def test_what_is_not_finished_is_sent_to_delta_again(tmp_path):
    """By the recipe of docs/spark.md."""
    session, *_ = programs_of("spark-sinks.md", "tests/spark/table_sinks.py")
    sent = recipe("tests/spark/table_sinks.py").replace('"/shared/', f'"{tmp_path}/')
    rows = f'spark.read.format("delta").load("{tmp_path}/again").collect()'
    queries = f"{sent}\nimport json\nprint(json.dumps(sorted(map(list, {rows}))))\n"
    assert run_on_page(tmp_path, [session], queries) == SENT_AGAIN
