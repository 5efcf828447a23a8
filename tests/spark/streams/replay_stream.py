"""A stream with replays on Spark, which tests/spark/streams/test_replays.py kills at a step.

Run it: python -m tests.spark.streams.replay_stream FOLDER STEP

It runs a query until nothing is left, and prints the counts. STEP is the number of calls of `fsync` and of ends of
`Replays.settle` after which the process, Python and JVM, is killed; -1: never.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import acker.spark as aspark
from acker.spark import session_checks
from tests.spark.streams.replay_kills import ATTEMPTS_MAX, MESSAGES, Steps

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FAILS = {3: 1, 4: 2, 5: ATTEMPTS_MAX}


def work(row):
    if row.attempt <= FAILS.get(row.number, 0):
        raise ValueError(f"attempt {row.attempt} of {row.number}")
    return [(row.number, row.attempt)]


class KillAll(Steps):
    """Kills the JVM too, as the end of a machine does."""

    def __call__(self):
        if self.left == 0:
            os.killpg(os.getpid(), signal.SIGKILL)
        self.left -= 1


def main():
    folder, step = Path(sys.argv[1]), KillAll(int(sys.argv[2]))
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config(session_checks.PROVIDER_CONF, session_checks.PROVIDER)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    ticks = folder / "clock"

    def clock():
        with ticks.open("a") as file:
            file.write(".")
        return 1000.0 + ticks.stat().st_size

    replays = aspark.Replays(
        folder / "ledger",
        replay=folder / "again",
        dead_letter=folder / "dead",
        attempts_max=ATTEMPTS_MAX,
        backoff_secs=1.0,
        clock=clock,
    )
    if not (folder / "first").exists():
        spark.range(MESSAGES, numPartitions=1).write.parquet(str(folder / "first"))
    first = spark.readStream.schema("id long").parquet(str(folder / "first"))
    again = spark.readStream.schema(aspark.Replays.ddl).parquet(str(folder / "again"))
    rows = first.select(F.col("id").alias("number"), F.lit(1).alias("attempt")).union(
        again.select("message_id", "attempt")
    )
    done = (
        aspark.spout(rows, message_id="number", attempt="attempt", run_seed=7)
        .bolt(work, schema="number long, attempt int", sink=True)
        .completions(timeout="1 hour")
    )

    drained = threading.Event()

    def keep(completions, batch_id):
        (folder / f"done-{batch_id}.json").write_text(json.dumps(completions.rows()))
        counts = replays.counts()
        if counts.messages and not counts.waiting and not counts.open:
            drained.set()

    settle = replays.settle

    def settle_and_step(*arguments):
        settle(*arguments)
        step()

    replays.settle = settle_and_step
    step.before(os, "fsync")
    writer = done.writeStream.foreachBatch(aspark.for_each_completion(keep, replays=replays))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    while not drained.is_set():
        query.awaitTermination(0.1)  # raises what ended it
    query.stop()
    print(json.dumps(replays.counts()._asdict()))


if __name__ == "__main__":
    main()
