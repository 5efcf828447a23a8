"""What users do with an object store, by the settings of spark-defaults.conf alone; test_object_store.py runs it.

Run it: python -m tests.spark.store_program (files | stream | replays) FOLDER URI

It prints one line of JSON.
"""

import json
import logging
import sys
import threading
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import acker
import acker.spark as aspark
from acker.spark import session_checks

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def session_of(folder):
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", (folder / "events").as_uri())
        .config(session_checks.PROVIDER_CONF, session_checks.PROVIDER)
        .getOrCreate()
    )


def rows_of(frame):
    columns = ("message_id", "task_id", "outcome")
    return sorted(tuple(row[name] for name in columns) for row in frame.select(*columns).collect())


def settle_files(spark, folder, uri):
    """Settle the same files on disk and in the store, named as a folder, by a pattern and as a stream."""
    on_disk = rows_of(aspark.completions_from_files(spark, folder / "messages"))
    in_store = aspark.completions_from_files(spark, uri)
    plan = in_store._jdf.queryExecution().toString()
    return {
        "disk": on_disk,
        "folder": rows_of(in_store),
        "pattern": rows_of(aspark.completions_from_files(spark, f"{uri}/*/part-?.parquet")),
        "stream": stream_of(spark, folder, uri),
        "plan": plan,
    }


def stream_of(spark, folder, uri):
    """Settle the files as a stream, whose checkpoint is in the store too."""
    done = aspark.completions_from_files(spark, uri, streaming=True, timeout="1 hour", shards=2)
    writer = done.writeStream.format("parquet").option("checkpointLocation", f"{uri} checkpoint")
    query = writer.trigger(availableNow=True).start(f"{uri} done")
    query.awaitTermination()
    return rows_of(spark.read.parquet(f"{uri} done"))


def replay(spark, folder, uri):
    """Run attempts until each message ends, with ledger, replays, dead letters and checkpoint in the store."""
    replays = aspark.Replays(
        f"{uri}/ledger", replay=f"{uri}/again", dead_letter=f"{uri}/dead", attempts_max=2, backoff_secs=0.0
    )
    spark.range(6, numPartitions=1).write.parquet(f"{uri}/first")
    first = spark.readStream.schema("id long").parquet(f"{uri}/first")
    again = spark.readStream.schema(aspark.Replays.ddl).parquet(f"{uri}/again")
    rows = first.selectExpr("id AS number", "1 AS attempt").union(again.select("message_id", "attempt"))

    def work(row):
        if row.number == 5 or (row.number == 3 and row.attempt == 1):
            raise ValueError(row.number)
        return [(row.number, row.attempt)]

    source = aspark.spout(rows, message_id="number", attempt="attempt", run_seed=7)
    done = source.bolt(work, schema="number long, attempt int", sink=True).completions(timeout="1 hour")
    drained = threading.Event()

    def keep(_, __):
        counts = replays.counts()
        if counts.messages and not counts.waiting and not counts.open:
            drained.set()

    writer = done.writeStream.foreachBatch(aspark.for_each_completion(keep, replays=replays))
    query = writer.option("checkpointLocation", f"{uri}/checkpoint").start()
    while not drained.is_set():
        query.awaitTermination(0.1)  # raises what ended it
    query.stop()
    return {"counts": replays.counts()._asdict(), "dead": spark.read.parquet(f"{uri}/dead").count()}


def main():
    what, folder, uri = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    (folder / "events").mkdir(exist_ok=True)
    logging.basicConfig(level=logging.WARNING)
    spark = session_of(folder)
    spark.sparkContext.setLogLevel("ERROR")
    told = {"files": settle_files, "replays": replay}[what](spark, folder, uri)
    spark.stop()
    print(json.dumps({"acker": acker.__version__, **told}))


if __name__ == "__main__":
    main()
