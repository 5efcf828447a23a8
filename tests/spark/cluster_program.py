"""A job on executors that share no disk with the driver, or with each other; test_clusters.py submits it.

    spark-submit ... SCRIPT FOLDER URI

Reads URI/messages, and keeps all else below URI. In FOLDER it says where it is, and waits there until it may go on.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, deque
from pathlib import Path

from pyspark.sql import SparkSession

import acker.spark as aspark
from acker.topology import Bolt, Grouping, ReliableSpout, StatefulBolt, Topology

FOLDER = "user.cluster.folder"
COUNT, KEYS = 240, 10
HALF, MAY_GO_ON = "half", "may go on"


def is_bad(number):
    return number % 50 == 7


class Numbers(ReliableSpout):
    outputs = ("number",)
    attempts_max = 2
    backoff_secs = 0.05

    def initialize(self, conf, context):
        self._folder = Path(conf[FOLDER])
        self._left = deque(range(COUNT))

    def next_tuple(self):
        if not self._left:
            self.finish()
            return
        number = self._left.popleft()
        if number == COUNT // 2:
            (self._folder / HALF).touch()
            while not (self._folder / MAY_GO_ON).exists():
                time.sleep(0.05)
        self.emit([number], tup_id=number)

    def dead_letter(self, tup_id, values, reason):
        with (self._folder / "dead").open("a") as log:
            log.write(f"{tup_id}\n")
        super().dead_letter(tup_id, values, reason)


class Spread(Bolt):
    outputs = ("key",)

    def process(self, tup):
        if is_bad(tup.number):
            raise ValueError(tup.number)
        self.emit([tup.number % KEYS])


class Count(StatefulBolt):
    def process(self, tup):
        self.state[tup.key] = self.state.get(tup.key, 0) + 1


class CountNumbers(Topology):
    config = {"topology.max.spout.pending": 40, "topology.message.timeout.secs": 600}

    numbers = Numbers.spec()
    spread = Spread.spec(inputs=[numbers], par=3)
    count = Count.spec(inputs={spread: Grouping.fields("key")}, par=3)


def rows_of(frame):
    return sorted(tuple(row[name] for name in ("message_id", "task_id", "outcome")) for row in frame.collect())


def wait_for_none(spark):
    """Wait until dynamic allocation has taken all executors away; the driver counts as one."""
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() > 1:
        time.sleep(0.1)


def stream_of(spark, uri):
    done = aspark.completions_from_files(spark, f"{uri}/messages", streaming=True, timeout="1 hour", shards=3)
    writer = done.writeStream.format("parquet").option("checkpointLocation", f"{uri}/stream")
    writer.trigger(availableNow=True).start(f"{uri}/done").awaitTermination()
    return rows_of(spark.read.parquet(f"{uri}/done"))


def main():
    folder, uri = Path(sys.argv[1]), sys.argv[2]
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    aspark.ship(spark)
    told = {"files": rows_of(aspark.completions_from_files(spark, f"{uri}/messages", shards=3))}
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        wait_for_none(spark)
    checkpoint = f"{uri}/count"
    aspark.run(CountNumbers, {FOLDER: str(folder)}, spark=spark, checkpoint=checkpoint, trigger="0 seconds")
    counts = Counter()
    for state in aspark.read_state(checkpoint)["count"]:
        counts.update(state)
    told["counts"] = sorted(counts.items())
    told["dead"] = sorted({int(line) for line in (folder / "dead").read_text().split()})
    told["stream"] = stream_of(spark, uri)
    (folder / "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
